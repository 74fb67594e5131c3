-- Q10, log to file system: every bid into files, with its day and its minute.
--
-- The query is as published. The published sink makes a folder for each day and each minute; here the
-- files of a folder are numbered by batches, and day and minute are columns.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q10 USING csv OPTIONS (path 'nexmark-answers/q10');

CREATE QUERY q10 INTO q10 AS
SELECT auction, bidder, price, dateTime, extra,
       DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS dt, DATE_FORMAT(dateTime, 'HH:mm') AS hm
FROM bid;
