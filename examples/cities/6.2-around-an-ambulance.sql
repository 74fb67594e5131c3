-- Section 6.2, with an area that moves: all vehicles near the ambulance, as they come near it and fall behind.
-- Vehicle 6 is the ambulance here; the area is a circle around its newest position.

CREATE SINK screen USING console;

CREATE STREAM positions (vehicle INT, x DOUBLE, y DOUBLE, t BIGINT)
  USING replay OPTIONS (path 'examples/cities/data/positions.csv', rate '500')
  TIMESTAMP BY t;

CREATE VIEW ambulance AS SELECT x, y FROM positions WHERE vehicle = 6;
CREATE VIEW others AS SELECT vehicle, x, y FROM positions WHERE vehicle <> 6;

CREATE VIEW near_it AS
  SELECT DISTINCT vehicle
  FROM others [PARTITION BY vehicle ROWS 1 WITHIN (x, y) INSIDE CIRCLE(a.x, a.y, 40000) OF ambulance [ROWS 1] a];

-- Each vehicle once when it comes near, and once when it is no longer there, whichever of the two has moved.
CREATE QUERY coming INTO screen AS SELECT ISTREAM(vehicle) FROM near_it;
CREATE QUERY going INTO screen AS SELECT DSTREAM(vehicle) FROM near_it;
