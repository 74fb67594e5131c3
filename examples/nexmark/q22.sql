-- Q22, get url directories: every bid with the three directories of its address.
--
-- SPLIT_INDEX of Flink counts parts from 0, SPLIT_PART from 1. A part that is not there is null there and an empty text
-- here.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q22 USING jsonl OPTIONS (path 'nexmark-answers/q22');

CREATE QUERY q22 INTO q22 AS
SELECT auction, bidder, price, channel,
       SPLIT_PART(url, '/', 4) AS dir1, SPLIT_PART(url, '/', 5) AS dir2, SPLIT_PART(url, '/', 6) AS dir3
FROM bid;
