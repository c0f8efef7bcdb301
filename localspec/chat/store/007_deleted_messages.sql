-- Keep deleted messages for a while; what is deleted together has the same time.
ALTER TABLE messages ADD COLUMN deleted REAL;
