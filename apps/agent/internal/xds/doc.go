// Package xds serves the region's routes to data planes that speak xDS version 3: Envoy, and gRPC
// clients without a proxy. They use aggregated discovery (ADS), in the state-of-the-world variant.
//
//	table (package gateways) --Feed--> config --stages--> cache --ADS--> Envoy, gRPC
//	        ^                                                              |
//	        '------- Serves ------- clients <------- acknowledgements -----'
//
// Clients are distinguished by the name of their program. An Envoy gets the route configuration
// "windlass". This has a virtual host per app and preview, its clusters (one per deployment) and
// their endpoints. The Envoy's operator configures the listeners. All other clients are gRPC
// clients. They get a listener for each host, with the host's name, so that
// "xds:///chat.example.com" is a target.
//
// All Envoys together count as one gateway. A route is served when each of them has acknowledged
// it, and the endpoints that it leads to. So weights move in stages, each of which is acknowledged
// before the next: new clusters and endpoints come first, then routes, and then old clusters are
// removed. The agent waits for an Envoy that refuses a response, or is silent, as long as for a
// gateway that is away. The region's notes name this Envoy. gRPC clients do not count, because they
// are programs of users, which come and go.
//
// A draining instance is not an endpoint any more. Envoys and gRPC clients do not report their
// requests in flight on it, as a gateway does. For these requests, the instance's grace period has
// to be enough.
//
// The configuration has these parts of a route's policy: balancing, affinity, the timeouts of a
// request and of silence, and retries. Only the gateway has the queue, the limits of requests in
// flight and of bodies, the timeout of a first byte, CORS and the log of payloads. Affinity selects
// an instance of a version, and the version is random. Only the gateway also selects the version by
// the key. Instances are weighted only by the load that they report by ORCA. Only the gateway uses
// its own measurements for instances that report nothing.
package xds
