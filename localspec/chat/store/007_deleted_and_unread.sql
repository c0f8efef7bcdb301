-- Keep deleted messages for a while; what is deleted together has the same time.
ALTER TABLE messages ADD COLUMN deleted REAL;

-- Keep which chats have an answer that was not yet seen: `answered`, `failed`, or nothing.
ALTER TABLE chats ADD COLUMN unread TEXT NOT NULL DEFAULT '';
