-- Q19, auction top-10 price: the ten highest bids of each auction, with their places.
--
-- Asked as published. Bids of the same price are put in the order of all their columns.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q19 USING jsonl OPTIONS (path 'nexmark-answers/q19');

CREATE QUERY q19 INTO q19 AS
SELECT *
FROM (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number
  FROM bid
)
WHERE rank_number <= 10;
