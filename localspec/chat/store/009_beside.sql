-- Remember the chat that is open beside the other one.
CREATE TABLE beside (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    chat INTEGER REFERENCES chats (id) ON DELETE SET NULL
);
