-- Keep with each chat what was being written.
ALTER TABLE chats ADD COLUMN draft TEXT NOT NULL DEFAULT '';
