-- Q2, selection: the bids on a few auctions: those whose number divides by 123.
--
-- Asked as published, with `%` for MOD.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q2 USING jsonl OPTIONS (path 'nexmark-answers/q2');

CREATE QUERY q2 INTO q2 AS
SELECT auction, price FROM bid WHERE auction % 123 = 0;
