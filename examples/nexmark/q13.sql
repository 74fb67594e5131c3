-- Q13, bounded side input join: every bid with a value from a table that stands in a file.
--
-- The published text looks the table up at the processing time of the bid. Here it is read once, when the query starts,
-- and is joined as it is.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE TABLE side_input (key BIGINT, value STRING)
  USING csv OPTIONS (path 'nexmark-data/side_input.csv');
CREATE SINK q13 USING jsonl OPTIONS (path 'nexmark-answers/q13');

CREATE QUERY q13 INTO q13 AS
SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
FROM bid B JOIN side_input S ON B.auction % 10000 = S.key;
