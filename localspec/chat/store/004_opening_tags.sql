-- Note which answers say by themselves what is thinking: older ones may lack the tag that the prompt wrote.
ALTER TABLE messages ADD COLUMN tagged INTEGER NOT NULL DEFAULT 0;
