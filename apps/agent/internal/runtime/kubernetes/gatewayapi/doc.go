// Package gatewayapi lets a data plane of the operator's own serve the region's routes: it
// writes them as HTTPRoutes of the Gateway API, and handles no requests itself.
//
//	hub ──Feed──▶ objects ──apply──▶ HTTPRoute ──▶ Service ◀── EndpointSlices
//	 ▲                                  │ status
//	 └────────── served ◀── judge ◀─────┘
//
// All of it is in one namespace, which the operator makes. A deployment has a Service
// without a selector, and EndpointSlices that are the table's instances, one by one: what the
// table says of an instance is what data planes find, also while two versions share a
// workload, and before the pod itself is touched. An app has an HTTPRoute for its hosts (the
// API takes 16 in one), with the deployments by weight, and each preview one of its own.
//
// A change of an app counts as served when its HTTPRoutes are accepted, and their references
// resolved, in the generation that was written. Changes of instances alone have no status: they
// count once they are written, and data planes hear of them a moment later. An instance must not
// be stopped before that moment is over, which the delay of its pod before it stops ensures.
// Routes that are removed count as gone once they are deleted.
//
// An object that is not as it was written is written anew, and one that belongs to no app any more
// is removed; also those that an agent before this one left.
package gatewayapi
