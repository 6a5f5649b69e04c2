// Package gatewayapi has a data plane of the operator's own serve the region's routes: it
// writes them as HTTPRoutes of the Gateway API, and does nothing about requests itself.
//
//	hub ──Feed──▶ objects ──apply──▶ HTTPRoute ──▶ Service ◀── EndpointSlices
//	 ▲                                  │ status
//	 └────────── served ◀── judge ◀─────┘
//
// All of it is in one namespace, which is the operator's to make. A deployment has a Service
// without a selector, and EndpointSlices that are the table's instances, one by one: what the
// table says of an instance is what data planes find, also while two versions share a
// workload, and before the pod itself is touched. An app has an HTTPRoute for its hosts (the
// API takes 16 in one), with the deployments by weight, and each preview one of its own.
//
// A change of an app counts as served when its HTTPRoutes are accepted, and their references
// resolved, in the generation that was written. Of instances alone nobody tells: they count
// once they are written, and data planes hear of them a moment later. Who stops an instance
// has to leave it that moment; its pod's own delay before it stops does. So it is with routes
// that are removed: they count as gone once they are deleted.
//
// What is here and is not as it was written, or is no app's any more, is written anew or
// removed; also what an agent before this one left.
package gatewayapi
