-- Query 5.6.2: "Follow the temperature in Athens."  Selection and projection, no window.

CREATE SINK screen USING console;

CREATE STREAM s (id INT, sensor INT, city STRING, t BIGINT, stamp STRING, temperature DOUBLE)
  USING replay OPTIONS (path 'examples/cities/data/temperature.txt', rate '500')
  TIMESTAMP BY t;

CREATE QUERY athens INTO screen AS
  ISTREAM (SELECT t, temperature FROM s WHERE city = 'ATHENS');
