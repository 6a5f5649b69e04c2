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
// that it has yet to be sent (a set, never a queue) and the change of each app that it
// serves. All that is asked is answered by comparing the two:
//
//   - a route is served when each gateway that counts serves a change that is no older than
//     the one with which the route came;
//   - gateways have stopped sending to an instance when this holds of each gateway that counts:
//     it reports no request in flight there, and of every app it serves a change that gives the
//     instance no new requests, or a later one;
//   - an instance that became ready counts as ready when this holds of each gateway that
//     reports: it serves the change with which the instance came, or a later one, and the instance
//     has passed its check through that gateway. It counts until no gateway can have a connection
//     to it. See routable.
//
// A gateway counts from its Watch until it was away for Grace: it goes on serving what it
// last had, and an agent that has just started does not yet know what that is. So it counts
// across a restart of the agent, too, from a small file. One that said that it leaves
// counts until its stream ends. Where no gateway counts, and none is expected, every route
// counts as served, and no instance as sent to: then requests come into the region in another
// way, and what the agent knows by itself is enough.
//
// Every wait ends: a gateway that is silent loses its stream, and counts no more after
// Grace; a caller that waits for an instance sets a deadline.
package gateways
