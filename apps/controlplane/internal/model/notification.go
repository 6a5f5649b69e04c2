package model

import (
	"cmp"
	"slices"
	"strings"
)

// NotificationKind is what a notification tells of. The numbers are stored, and those of the API.
type NotificationKind int32

// Kinds of notifications.
const (
	NotifyRolloutFailed     NotificationKind = 1
	NotifyRolledBack        NotificationKind = 2
	NotifyApprovalNeeded    NotificationKind = 3
	NotifyStartHeld         NotificationKind = 4
	NotifyRegionUnreachable NotificationKind = 5
	NotifyRegionBack        NotificationKind = 6
	// NotifyTest is sent on request, to endpoints of any kinds.
	NotifyTest NotificationKind = 7
)

// WhatTest is what a test tells of, in place of a history entry.
const WhatTest = "Test"

// Bit of the kind in NotificationEndpoint.Kinds.
func (k NotificationKind) Bit() int64 { return 1 << k }

// NotificationKinds are those that an endpoint may ask for.
func NotificationKinds() []NotificationKind {
	return []NotificationKind{
		NotifyRolloutFailed, NotifyRolledBack, NotifyApprovalNeeded, NotifyStartHeld, NotifyRegionUnreachable, NotifyRegionBack,
	}
}

// AllNotificationKinds has the bit of each kind that an endpoint may ask for.
func AllNotificationKinds() (bits int64) {
	for _, k := range NotificationKinds() {
		bits |= k.Bit()
	}
	return bits
}

// notified are the history entries that endpoints are notified of.
var notified = map[string]NotificationKind{
	"RolloutFailed":      NotifyRolloutFailed,
	"RolloutGoingBack":   NotifyRolledBack,
	"LiveReturned":       NotifyRolledBack,
	"WaveNeedsApproval":  NotifyApprovalNeeded,
	"StartNeedsApproval": NotifyApprovalNeeded,
	"RolloutHeld":        NotifyStartHeld,
}

// NotificationOf returns the kind of notification that the history entry is sent as. ok is false for
// entries without a notification.
func NotificationOf(what string) (k NotificationKind, ok bool) {
	k, ok = notified[what]
	return k, ok
}

// NotificationFormat is how the body of a notification is written. The numbers are stored, and those of
// the API.
type NotificationFormat int32

// Formats of bodies.
const (
	FormatCloudEvents NotificationFormat = 1
	FormatSlack       NotificationFormat = 2
)

// MaxNotificationEndpoints that a workspace may have.
const MaxNotificationEndpoints = 20

// ListedNotificationEndpoints bounds a list of them, far above what calls at once could add past the limit.
const ListedNotificationEndpoints = 10 * MaxNotificationEndpoints

// NotificationEndpoint is a URL that notifications are sent to.
type NotificationEndpoint struct {
	ID, WorkspaceID, Name string
	// ScopeID is the id of a project or of an app; empty: the workspace.
	ScopeID string
	Format  NotificationFormat
	// Kinds has the bit of each kind that is sent.
	Kinds int64
	// Origin is the scheme and host of the URL. The URL is sealed, since it may be a credential.
	Origin   string
	Disabled bool
	// PreviousUntil is when the signing secret before the newest stops signing, 0 for none.
	PreviousUntil int64
	// TestedAt is when a test was asked for last.
	TestedAt             int64
	CreatedBy            string
	CreatedAt, UpdatedAt int64
}

// EndpointSecret is the name of the secret that holds an endpoint's URL and signing secrets. Its
// environment is the endpoint's id.
const EndpointSecret = "endpoint"

// Concerns reports whether the endpoint is sent what happens to an app of the project.
func (e NotificationEndpoint) Concerns(appID, projectID string) bool {
	return e.ScopeID == "" || e.ScopeID == projectID || e.ScopeID == appID
}

// Wants reports whether the endpoint is sent notifications of the kind.
func (e NotificationEndpoint) Wants(k NotificationKind) bool {
	return !e.Disabled && e.Kinds&k.Bit() != 0
}

// DeliveryState is where a delivery stands. The numbers are stored.
type DeliveryState int32

// States of deliveries.
const (
	DeliveryPending   DeliveryState = 0
	DeliveryDelivered DeliveryState = 1
	// DeliveryDead is not tried any more, unless it is replayed.
	DeliveryDead DeliveryState = 2
)

// Delivery is a notification to one endpoint, with the facts as they were.
type Delivery struct {
	EndpointID, MessageID string
	WorkspaceID           string
	Kind                  NotificationKind
	At                    int64
	What, Why, Who        string
	// Names as they were; empty where there is no such thing.
	Workspace, Project, Environment, App string
	AppID                                string
	Version                              int32
	RolloutID, DeploymentID              string
	Region, RegionID                     string
	// Events is how many events it tells of; What and Why are of the first.
	Events int32
	// Apps is how many apps it is about, and AppNames the first of them, as project/environment/app
	// with a space between each two.
	Apps     int32
	AppNames string

	State    DeliveryState
	Attempts int32
	// DueAt is when a pending one is tried next, and when one that is over is forgotten.
	DueAt int64
	// TriesSince is when its tries began.
	TriesSince int64
	DoneAt     int64
	// Problem of the last try, empty for none.
	Problem string
}

// maxAppNames is how many apps a notification names.
const maxAppNames = 20

// NamedApps are the first of the names, sorted and each once, as Delivery.AppNames has them, and how many
// there are.
func NamedApps(names []string) (count int32, text string) {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	return int32(len(names)), strings.Join(names[:min(len(names), maxAppNames)], " ")
}

// AppPath is the app's name with those of its project and environment; empty without an app.
func (d Delivery) AppPath() string {
	if d.App == "" {
		return ""
	}
	return d.Project + "/" + d.Environment + "/" + d.App
}

// MessageID of the notification of a history entry. It ascends as the ids of entries do.
func MessageID(historyID string) string {
	_, id, ok := strings.Cut(historyID, "_")
	if !ok {
		id = historyID
	}
	return "ntf_" + id
}

// DeliveryOf is the notification of the history entry to an endpoint, without names.
func DeliveryOf(h History, k NotificationKind) Delivery {
	return Delivery{
		MessageID: MessageID(h.ID), WorkspaceID: h.WorkspaceID, Kind: k, At: h.At, What: h.What, Why: h.Why, Who: h.Who,
		AppID: h.AppID, Version: h.Version, RolloutID: h.RolloutID, DeploymentID: h.DeploymentID, RegionID: h.RegionID,
		Events: 1, Apps: 1, DueAt: h.At, TriesSince: h.At,
	}
}

// RegionNotice tells that a region went or returned.
type RegionNotice struct {
	MessageID, RegionID string
	Kind                NotificationKind
	At                  int64
}

// text of the notice, as history would have it.
func (n RegionNotice) text() (what, why string) {
	if n.Kind == NotifyRegionUnreachable {
		return "RegionUnreachable", "its agent stopped reporting; what runs there goes on, and nothing is deleted"
	}
	return "RegionReturned", "its agent reports again"
}

// AppPlace names the project and environment of an app.
type AppPlace struct{ Project, Environment string }

// Deliveries are the notice for the endpoints that it concerns: one for each, however many of its apps are
// in the region. apps are those with replicas there, names those of apps by id, workspaces the
// workspaces' names by id.
func (n RegionNotice) Deliveries(r Region, endpoints []NotificationEndpoint, apps []App, names map[string]AppPlace, workspaces map[string]string) (out []Delivery) {
	what, why := n.text()
	for _, e := range endpoints {
		var paths []string
		for _, a := range apps {
			if a.WorkspaceID == e.WorkspaceID && e.Concerns(a.ID, a.ProjectID) {
				paths = append(paths, names[a.ID].Project+"/"+names[a.ID].Environment+"/"+a.Name)
			}
		}
		// A workspace hears of its own regions even while they are empty.
		if !e.Wants(n.Kind) || len(paths) == 0 && (e.ScopeID != "" || r.WorkspaceID != e.WorkspaceID) {
			continue
		}
		d := Delivery{
			EndpointID: e.ID, MessageID: n.MessageID, WorkspaceID: e.WorkspaceID, Kind: n.Kind, At: n.At, What: what, Why: why,
			Who: "windlass", Workspace: workspaces[e.WorkspaceID], Region: r.Name, RegionID: r.ID,
			Events: 1, DueAt: n.At, TriesSince: n.At,
		}
		d.Apps, d.AppNames = NamedApps(paths)
		out = append(out, d)
	}
	slices.SortFunc(out, CompareDeliveries)
	return out
}

// CompareDeliveries is the order of their rows.
func CompareDeliveries(a, b Delivery) int {
	return cmp.Or(cmp.Compare(a.EndpointID, b.EndpointID), cmp.Compare(a.MessageID, b.MessageID))
}

// DeliveryCount is how many deliveries of an endpoint are in a state.
type DeliveryCount struct {
	EndpointID string
	State      DeliveryState
	Count      int64
}
