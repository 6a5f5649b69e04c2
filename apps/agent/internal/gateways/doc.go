// Package gateways tells the region's gateways what to serve, and the rest of the agent
// what they do serve.
//
//	inbox    --routes-----.                  .--Watch-->  gateway
//	                       >-- table -- hub <
//	runtime  --instances--'                  '<-Report--  gateway
//	                                    |
//	   reconcile, runtime, report <--  is it served? have gateways stopped sending to it?
//	                                   can it be sent to?
//
// The table is the newest state of each app: its route and the instances behind it. Each
// state has a number, change, which only grows. The hub holds, for each gateway, the apps
// that must still be sent to it (a set, never a queue) and the change of each app that it
// serves. Comparing the table with what gateways serve answers every question:
//
//   - a route is served when each gateway that counts serves the change with which the route
//     came, or a later one;
//   - gateways have stopped sending to an instance when each gateway that counts reports no
//     request in flight there, and serves, for every app, a change since which the instance gets
//     no new requests;
//   - an instance that passes its check counts as ready once each gateway that reports serves the
//     change with which the instance came, or a later one, and has reached the instance. It
//     counts until no gateway can connect to it. See routable.
//
// A gateway counts from its Watch until it was away for Grace, because it goes on serving what
// it last received. A small file keeps which gateways count across a restart of the agent: an
// agent that has just started does not know yet what they serve. A gateway that reported that
// it is leaving counts until its stream ends. Where no gateway counts and none is expected,
// every route counts as served and no gateway as sending to an instance: then requests enter
// the region in another way, and what the agent knows by itself is enough.
//
// Every wait ends: a silent gateway loses its stream and stops counting after Grace, and a
// caller that waits for an instance sets a deadline.
package gateways
