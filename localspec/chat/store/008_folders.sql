-- Keep the folder of each chat by its name, empty for none, and which folders are folded in the list.
ALTER TABLE chats ADD COLUMN folder TEXT NOT NULL DEFAULT '';

CREATE TABLE folded (folder TEXT PRIMARY KEY);
