// Package models keeps the models of a region loaded on its servers.
//
//	models, servers --> placement --> states --> loads and unloads --> servers
//	                        ^            |                                |
//	                        |            '--> routes --> gateways         |
//	                        '------------------ results, observations <---'
//
// A server is an instance of an app that serves models. The manager decides alone: a region heals while the
// control plane is away. It asks servers which models they hold, so that after a restart of the agent it
// adopts the loaded models, and loads none of them again.
//
// Invariants:
//
//   - A server gets no model before it has told what it holds.
//   - Gateways route to a replica only while its server has the model and says that
//     the model is ready. A model is unloaded once all gateways have acknowledged
//     that they do not route to it, or after Config.Patience.
//   - A result or an observation of an older request changes nothing (pkg/modelstate).
//   - A model that was loading when its server ended is loaded alone the next time.
//     If the server ends again, the model is quarantined for that app, until
//     Config.Forgive has passed.
//   - A model that is not among the wanted ones is left alone, unless it is among them
//     as deleted.
package models
