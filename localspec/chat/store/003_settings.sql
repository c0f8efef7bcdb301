-- Keep with each chat what it settles by itself, as an object of JSON.
ALTER TABLE chats ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';
