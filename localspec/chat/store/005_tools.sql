-- Keep calls of tools with the answer that makes them, and each result as a message of its own.
-- The table is built again, because the roles that it allows cannot be changed.
DROP VIEW messages_to_index;

CREATE TABLE new_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    parent INTEGER,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'tool')),
    state TEXT NOT NULL,
    dropped INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    written REAL NOT NULL,
    content TEXT NOT NULL,
    tagged INTEGER NOT NULL DEFAULT 0,
    calls TEXT NOT NULL DEFAULT '[]',
    run TEXT,
    UNIQUE (chat, id),
    FOREIGN KEY (chat, parent) REFERENCES messages (chat, id)
);

INSERT INTO new_messages (id, chat, parent, role, state, dropped, created, written, content, tagged)
    SELECT id, chat, parent, role, state, dropped, created, written, content, tagged FROM messages;

INSERT OR REPLACE INTO sqlite_sequence (rowid, name, seq)
    SELECT found.rowid, 'new_messages', before.seq
    FROM sqlite_sequence AS before LEFT JOIN sqlite_sequence AS found ON found.name = 'new_messages'
    WHERE before.name = 'messages';

DROP TABLE messages;

ALTER TABLE new_messages RENAME TO messages;

CREATE INDEX messages_by_parent ON messages (chat, parent);

CREATE INDEX messages_under_way ON messages (written) WHERE state = 'writing';

CREATE VIEW messages_to_index AS
    SELECT id, search_text(content) AS text FROM messages WHERE state <> 'writing';

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
