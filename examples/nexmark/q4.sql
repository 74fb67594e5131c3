-- Q4, average price for a category: what do auctions of each category bring, on the average?
-- An auction brings its highest bid between its opening and its end.
--
-- Asked as published. Flink corrects averages that it has given; here each is right at its instant,
-- and the answer is an average with the time from which and until which it holds.
-- The average of a BIGINT is a DOUBLE, in Flink a BIGINT that is cut.

CREATE STREAM auction (id BIGINT, itemName STRING, description STRING, initialBid BIGINT,
    reserve BIGINT, dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/auction.csv') TIMESTAMP BY dateTime;
CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q4 USING jsonl OPTIONS (path 'nexmark-answers/q4');

CREATE QUERY q4 INTO q4 AS
SELECT Q.category, AVG(Q.final) AS average
FROM (
  SELECT MAX(B.price) AS final, A.category
  FROM auction A, bid B
  WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  GROUP BY A.id, A.category
) Q
GROUP BY Q.category;
