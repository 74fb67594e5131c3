-- Q21, add channel id: every bid with the number of its channel: that of a known name, or the one in its address.
--
-- The published text leaves out bids where REGEXP_EXTRACT gives null. Here it gives an empty text if nothing was found, as
-- in Spark, so that is what is left out.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q21 USING jsonl OPTIONS (path 'nexmark-answers/q21');

CREATE QUERY q21 INTO q21 AS
SELECT auction, bidder, price, channel,
       CASE
         WHEN LOWER(channel) = 'apple' THEN '0'
         WHEN LOWER(channel) = 'google' THEN '1'
         WHEN LOWER(channel) = 'facebook' THEN '2'
         WHEN LOWER(channel) = 'baidu' THEN '3'
         ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
       END AS channel_id
FROM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) <> ''
   OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu');
