-- Keep summaries. Each stands for its message and all those before it on a branch, which stay as they are.
CREATE TABLE summaries (
    message INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    text TEXT NOT NULL
);

CREATE VIEW summaries_to_index AS SELECT message AS id, search_text(text) AS text FROM summaries;

CREATE VIRTUAL TABLE summary_index USING fts5 (
    text, content='summaries_to_index', content_rowid='id', prefix='1 2 3',
    tokenize='unicode61 remove_diacritics 2'
);

CREATE TRIGGER summary_added AFTER INSERT ON summaries BEGIN
    INSERT INTO summary_index (rowid, text) VALUES (new.message, search_text(new.text));
END;

CREATE TRIGGER summary_purged AFTER DELETE ON summaries BEGIN
    INSERT INTO summary_index (summary_index, rowid, text)
        VALUES ('delete', old.message, search_text(old.text));
END;
