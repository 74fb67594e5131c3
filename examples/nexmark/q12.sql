-- Q12, processing time windows: how many bids does each bidder make in every ten seconds?
--
-- Differs in its time. The published query counts by the clock of the machine, so each run has another answer. Penstock
-- has no such windows: an answer never depends on when a row was worked on. Here it is the time of the bids.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q12 USING jsonl OPTIONS (path 'nexmark-answers/q12');

CREATE QUERY q12 INTO q12 AS
ISTREAM (
  SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
  GROUP BY bidder, window_start, window_end
);
