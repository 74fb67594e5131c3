-- Q0, pass through: every bid as it is, so that what is measured is reading and writing.
--
-- Asked as published.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q0 USING jsonl OPTIONS (path 'nexmark-answers/q0');

CREATE QUERY q0 INTO q0 AS
SELECT auction, bidder, price, dateTime, extra FROM bid;
