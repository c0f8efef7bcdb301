-- Chats, messages, records and the indexes of their text. A blank line ends a statement.
-- `search_text` is a function that the connection brings along; see search.py.
-- The indexes of the text are "external content": they hold no second copy of it.
CREATE TABLE chats (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    pinned INTEGER NOT NULL DEFAULT 0,
    profile TEXT NOT NULL,
    system TEXT,
    leaf INTEGER,
    deleted REAL
);

CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    parent INTEGER,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    state TEXT NOT NULL,
    dropped INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    written REAL NOT NULL,
    content TEXT NOT NULL,
    UNIQUE (chat, id),
    FOREIGN KEY (chat, parent) REFERENCES messages (chat, id)
);

CREATE INDEX messages_by_parent ON messages (chat, parent);

CREATE INDEX messages_under_way ON messages (written) WHERE state = 'writing';

CREATE TABLE attachments (
    message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (message, position)
);

CREATE TABLE records (
    message INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    outline BLOB NOT NULL,
    rounds BLOB NOT NULL
);

CREATE TABLE remembered (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    chat INTEGER REFERENCES chats (id) ON DELETE SET NULL
);

CREATE VIEW titles_to_index AS SELECT id, search_text(title) AS text FROM chats;

CREATE VIEW messages_to_index AS
    SELECT id, search_text(content) AS text FROM messages WHERE state <> 'writing';

CREATE VIRTUAL TABLE title_index USING fts5 (
    text, content='titles_to_index', content_rowid='id', prefix='1 2 3',
    tokenize='unicode61 remove_diacritics 2'
);

CREATE VIRTUAL TABLE message_index USING fts5 (
    text, content='messages_to_index', content_rowid='id', prefix='1 2 3',
    tokenize='unicode61 remove_diacritics 2'
);

CREATE TRIGGER chat_added AFTER INSERT ON chats BEGIN
    INSERT INTO title_index (rowid, text) VALUES (new.id, search_text(new.title));
END;

CREATE TRIGGER chat_renamed AFTER UPDATE OF title ON chats WHEN old.title <> new.title BEGIN
    INSERT INTO title_index (title_index, rowid, text) VALUES ('delete', old.id, search_text(old.title));
    INSERT INTO title_index (rowid, text) VALUES (new.id, search_text(new.title));
END;

CREATE TRIGGER chat_purged AFTER DELETE ON chats BEGIN
    INSERT INTO title_index (title_index, rowid, text) VALUES ('delete', old.id, search_text(old.title));
END;

CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.state <> 'writing' BEGIN
    INSERT INTO message_index (rowid, text) VALUES (new.id, search_text(new.content));
END;

CREATE TRIGGER message_written AFTER UPDATE OF content, state ON messages
WHEN (old.state <> 'writing' OR new.state <> 'writing')
    AND (old.content <> new.content OR (old.state = 'writing') <> (new.state = 'writing'))
BEGIN
    INSERT INTO message_index (message_index, rowid, text)
        SELECT 'delete', old.id, search_text(old.content) WHERE old.state <> 'writing';
    INSERT INTO message_index (rowid, text)
        SELECT new.id, search_text(new.content) WHERE new.state <> 'writing';
END;

CREATE TRIGGER message_purged AFTER DELETE ON messages WHEN old.state <> 'writing' BEGIN
    INSERT INTO message_index (message_index, rowid, text)
        VALUES ('delete', old.id, search_text(old.content));
END;
