// Package xds serves the region's routes to data planes that speak xDS, version 3: Envoy, and gRPC clients
// without a proxy. They use aggregated discovery (ADS), state of the world.
//
//	table (package gateways) --Feed--> config --stages--> cache --ADS--> Envoy, gRPC
//	        ^                                                              |
//	        '------- Serves ------- clients <------- acknowledgements -----'
//
// Clients are distinguished by the name of their program. An Envoy gets the route configuration "windlass",
// with a virtual host per app and preview, its clusters (one per deployment) and their endpoints. Its
// operator configures the listeners. All other clients are gRPC clients, and get a listener for each host by
// the host's name, so that "xds:///chat.example.com" is a target.
//
// All Envoys together count as a gateway: a route is served when each of them has acknowledged it, and the
// endpoints that it leads to. So weights move in stages, each of which is acknowledged before the next: new
// clusters and endpoints, then routes, then old clusters are removed. An Envoy that refuses a response, or is
// silent, is waited for as long as a gateway that is away. The region's notes name it. gRPC clients do not
// count, because they are users' programs, which come and go.
//
// An instance that drains is no endpoint any more. Envoys and gRPC clients do not report their requests in
// flight on it, as a gateway does. These requests get the grace of the instance's stop.
//
// The configuration has these parts of a route's policy: balancing, affinity, the timeouts of a request and
// of silence, and retries. Only the gateway has the queue, the limits of requests in flight and of bodies,
// the timeout of a first byte, CORS and the log of payloads. Affinity is to an instance of a version, and the
// version is drawn at random. Only the gateway chooses the version by the key, too. Instances are weighted
// only by the load that they report by ORCA. Only the gateway weights them by its own measurements where they
// report nothing.
package xds
