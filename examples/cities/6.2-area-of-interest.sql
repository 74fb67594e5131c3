-- Section 6.2: "All vehicles inside the area of interest, as they enter and leave it."  A spatial window on the
-- newest position of each vehicle.

CREATE SINK screen USING console;

CREATE STREAM positions (vehicle INT, x DOUBLE, y DOUBLE, t BIGINT)
  USING replay OPTIONS (path 'examples/cities/data/positions.csv', rate '500')
  TIMESTAMP BY t;

-- Who is in the area, and where.
CREATE VIEW in_the_area AS
  SELECT vehicle, x, y
  FROM positions [PARTITION BY vehicle ROWS 1 WITHIN (x, y) INSIDE POLYGON((20000, 10000), (80000, 20000), (60000, 70000), (10000, 60000))];

CREATE VIEW vehicles AS SELECT DISTINCT vehicle FROM in_the_area;

-- Each vehicle once when it enters, and once when it leaves.
CREATE QUERY entering INTO screen AS SELECT ISTREAM(vehicle) FROM vehicles;
CREATE QUERY leaving INTO screen AS SELECT DSTREAM(vehicle) FROM vehicles;

-- How many there are in the city, a circle of 15 km.
CREATE QUERY in_the_city INTO screen AS
  SELECT COUNT(*) AS vehicles
  FROM positions [PARTITION BY vehicle ROWS 1 WITHIN (x, y) INSIDE CIRCLE(50000, 40000, 15000)];
