// Package models keeps the models of a region loaded on its servers.
//
//	models, servers --> placement --> states --> loads and unloads --> servers
//	                        ^            |                                |
//	                        |            '--> routes --> gateways         |
//	                        '------------------ results, observations <---'
//
// A server is an instance of an app that serves models. The manager decides without the control
// plane, so a region heals while the control plane is away. It asks servers which models they hold.
// So after a restart of the agent, it adopts the loaded models and loads none of them again.
//
// Invariants:
//
//   - A server gets no model before it has answered which models it holds.
//   - Gateways route to a replica only while its server has the model and says that the model is
//     ready. A model is unloaded once all gateways have acknowledged that they do not route to it,
//     or after Config.Patience.
//   - The result of an older request changes nothing, nor does an older observation
//     (pkg/modelstate).
//   - If a server ends while it loads a model, the model is loaded alone the next time. If a server
//     ends again, the model is quarantined for that app, until Config.Forgive has passed.
//   - A model that the manager does not know is left alone. A deleted model stays known until no
//     server has it.
package models
