-- Q14, calculation: bids of a certain price with the time of day, and how often a letter stands in their text.
--
-- Differs in two things: the price is a DOUBLE in place of a DECIMAL, and the published count_char, a function
-- written in Java, is written with LENGTH and REPLACE.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q14 USING jsonl OPTIONS (path 'nexmark-answers/q14');

CREATE QUERY q14 INTO q14 AS
SELECT auction, bidder, 0.908 * price AS price,
       CASE
         WHEN HOUR(dateTime) >= 8 AND HOUR(dateTime) <= 18 THEN 'dayTime'
         WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20 THEN 'nightTime'
         ELSE 'otherTime'
       END AS bidTimeType,
       dateTime, extra,
       LENGTH(extra) - LENGTH(REPLACE(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;
