-- Q11, user sessions: how many bids does each bidder make without a pause of ten seconds?
--
-- Asked as published, with the session as a function in FROM and its gap behind the stream, as newer versions
-- of Flink have it. ISTREAM gives each session once, when it is over.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q11 USING jsonl OPTIONS (path 'nexmark-answers/q11');

CREATE QUERY q11 INTO q11 AS
ISTREAM (
  SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
  FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
  GROUP BY bidder, window_start, window_end
);
