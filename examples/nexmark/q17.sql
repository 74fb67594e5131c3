-- Q17, auction statistics report: how many bids are there on each auction and each day, and how high are they?
--
-- Asked as published. The answer is a relation: each row has the time from which and until which it holds.
-- The average is a DOUBLE, in Flink a BIGINT that is cut.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q17 USING jsonl OPTIONS (path 'nexmark-answers/q17');

CREATE QUERY q17 INTO q17 AS
SELECT auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS day,
       COUNT(*) AS total_bids,
       COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
       COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
       COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
       MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
FROM bid
GROUP BY auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd');
