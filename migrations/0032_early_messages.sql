-- Which executors keep messages that come before their runs are due.
ALTER TABLE executors ADD COLUMN keeps_early boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN executors.keeps_early IS 'true if it keeps a message that comes before its run is due; the relay publishes none early for others';
