// Package gatewayapi lets the operator's own data plane serve the region's routes. It writes them as
// HTTPRoutes of the Gateway API, and handles no requests itself.
//
//	hub ──Feed──▶ objects ──apply──▶ HTTPRoute ──▶ Service ◀── EndpointSlices
//	 ▲                                  │ status
//	 └────────── served ◀── judge ◀─────┘
//
// All objects are in one namespace, which the operator creates. A deployment has a Service without
// a selector, and EndpointSlices with the table's instances. So data planes see the table's state
// of each instance, even while two versions share a workload, and before the pod itself changes. An
// app has one HTTPRoute for up to 16 of its hosts, which is the API's limit. The HTTPRoute has the
// app's deployments by weight. Each preview has its own HTTPRoute.
//
// A change of an app counts as served when its HTTPRoutes are accepted and their references are
// resolved, both in the generation that was written. Changes of instances alone have no status.
// They count as served once they are written, and data planes see them a moment later. The delay
// before a pod stops covers this moment. Removed routes count as gone once they are deleted.
//
// An object that another client has changed is written again. An object that belongs to no app any
// more is removed, even if an earlier agent wrote it.
package gatewayapi
