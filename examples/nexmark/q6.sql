-- Q6, average selling price by seller: what did the last auctions of each seller bring, on the average?
--
-- Flink cannot run the published text, because an OVER follows a relation that is corrected; here it runs.
-- The winning bid of each auction is its first by price, then by time, as in Q9. As published, the frame holds the
-- auction itself and the ten before it. Bids of one millisecond are put in the order of their auctions, so that the
-- answer is one.

CREATE STREAM auction (id BIGINT, itemName STRING, description STRING, initialBid BIGINT,
    reserve BIGINT, dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/auction.csv') TIMESTAMP BY dateTime;
CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q6 USING jsonl OPTIONS (path 'nexmark-answers/q6');

CREATE QUERY q6 INTO q6 AS
SELECT Q.seller,
       AVG(Q.final) OVER (PARTITION BY Q.seller ORDER BY Q.dateTime, Q.id
                          ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS average
FROM (
  SELECT id, seller, final, dateTime
  FROM (
    SELECT A.id, A.seller, B.price AS final, B.dateTime,
           ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) AS place
    FROM auction A, bid B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  )
  WHERE place <= 1
) Q;
