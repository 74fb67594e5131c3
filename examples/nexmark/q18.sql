-- Q18, find last bid: the newest bid of each bidder on each auction.
--
-- Asked as published. The answer is a relation, in which a bid is replaced by the next one.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q18 USING jsonl OPTIONS (path 'nexmark-answers/q18');

CREATE QUERY q18 INTO q18 AS
SELECT auction, bidder, price, channel, url, dateTime, extra
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS rank_number
  FROM bid
)
WHERE rank_number <= 1;
