// Package gateways sends routes and instances to the region's gateways, and tells the other parts
// of the agent what the gateways serve.
//
//	inbox    --routes-----.                  .--Watch-->  gateway
//	                       >-- table -- hub <
//	runtime  --instances--'                  '<-Report--  gateway
//	                                    |
//	   reconcile, runtime, report <--  is the route served? have gateways stopped sending to
//	                                   the instance? can gateways reach the instance?
//
// The table has the newest state of each app: its route and the instances behind it. Each state has
// a change, a number that only grows. The hub has, for each gateway, the set of apps whose newest
// state was not sent yet, and the change of each app that the gateway serves. A comparison of the
// table with the hub answers these questions:
//
//   - a route is served when each gateway that counts serves the change with which the route
//     came, or a later one;
//   - gateways have stopped sending to an instance when each gateway that counts reports no
//     request in flight there, and serves, for every app, a change since which the instance gets
//     no new requests;
//   - an instance that passes its check counts as ready once each gateway that reports serves the
//     change with which the instance came, or a later one, and has reached the instance. The
//     instance counts until no gateway can connect to it. See routable.
//
// A gateway counts from its Watch until it has been away for Grace, because while it is away it
// serves the states that it received last. The ids of the gateways that count are in a file, so the
// agent waits for these gateways after its restart, too. A gateway that reported that it is leaving
// counts until its stream ends. If no gateway counts and none is expected, requests enter the
// region in another way. Then every route counts as served, and no gateway sends to an instance.
//
// Every wait ends: a silent gateway loses its stream and stops counting after Grace, and a
// caller that waits for an instance sets a deadline.
package gateways
