// Package xds tells the region's routes to data planes that speak xDS, version 3: Envoy,
// and gRPC clients without a proxy. They ask over aggregated discovery (ADS), state of the
// world.
//
//	table (package gateways) --Feed--> config --stages--> cache --ADS--> Envoy, gRPC
//	        ^                                                              |
//	        '------- Serves ------- clients <------- acknowledgements -----'
//
// Who asks is told apart by the name of its program: an Envoy gets the route configuration
// "windlass", with a virtual host per app and preview, its clusters (one per deployment)
// and their endpoints; listeners are its operator's. Anything else is a gRPC client, and gets a
// listener for each host by the host's name, so that "xds:///chat.example.com" is a target.
//
// Envoys count as a gateway: a route is served when each of them has acknowledged it, and
// the endpoints that it leads to. So weights move in stages, each of which is acknowledged
// before the next: new clusters and endpoints, then routes, then old clusters go. One
// that refuses what it is sent, or is silent, is waited for as long as a gateway that is
// away, and no longer; the region's notes name it. gRPC clients do not count: they are
// users' programs, which come and go.
//
// An instance that drains is no endpoint any more. Envoys and gRPC clients do not report what is
// in flight on it, as a gateway does: its requests get the grace of its stop.
//
// Of a route's policy, balancing, affinity, the timeouts of a request and of silence, and
// retries are in the configuration. The queue, the limits of requests in flight and of
// bodies, the timeout of a first byte, CORS and the log of payloads are the gateway's own. Affinity
// is to an instance of a version, and which version has a request is drawn: the gateway alone
// chooses that by the key, too. Weights of instances are by what those report of their load, by
// ORCA, and only there: the gateway alone goes by what it sees where they report nothing.
package xds
