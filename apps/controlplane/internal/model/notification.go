package model

import (
	"cmp"
	"slices"
	"strings"
)

// NotificationKind is what a notification is about. The numbers are the same as in the API, and they are stored.
type NotificationKind int32

// Kinds of notifications.
const (
	NotifyRolloutFailed     NotificationKind = 1
	NotifyRolledBack        NotificationKind = 2
	NotifyApprovalNeeded    NotificationKind = 3
	NotifyStartHeld         NotificationKind = 4
	NotifyRegionUnreachable NotificationKind = 5
	NotifyRegionBack        NotificationKind = 6
	// NotifyTest is sent on request, to endpoints of all kinds.
	NotifyTest NotificationKind = 7
)

// WhatTest is the What of a test, which has no history entry.
const WhatTest = "Test"

// Bit returns the kind's bit in NotificationEndpoint.Kinds.
func (k NotificationKind) Bit() int64 { return 1 << k }

// NotificationKinds returns the kinds that an endpoint may ask for.
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

// notified maps history entries that are sent to endpoints to the kinds of their notifications.
var notified = map[string]NotificationKind{
	"RolloutFailed":      NotifyRolloutFailed,
	"RolloutGoingBack":   NotifyRolledBack,
	"LiveReturned":       NotifyRolledBack,
	"WaveNeedsApproval":  NotifyApprovalNeeded,
	"StartNeedsApproval": NotifyApprovalNeeded,
	"RolloutHeld":        NotifyStartHeld,
}

// NotificationOf returns the kind of the notification that tells of the history entry. ok is false for entries without
// a notification.
func NotificationOf(what string) (k NotificationKind, ok bool) {
	k, ok = notified[what]
	return k, ok
}

// NotificationFormat is the format of a notification's body. The numbers are the same as in the API, and they are
// stored.
type NotificationFormat int32

// Formats of bodies.
const (
	FormatCloudEvents NotificationFormat = 1
	FormatSlack       NotificationFormat = 2
)

// MaxNotificationEndpoints is how many endpoints a workspace may have.
const MaxNotificationEndpoints = 20

// ListedNotificationEndpoints bounds a list of endpoints, far above what concurrent calls could add.
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
	// TestedAt is when a test was last requested.
	TestedAt             int64
	CreatedBy            string
	CreatedAt, UpdatedAt int64
}

// EndpointSecret is the name of the secret that holds an endpoint's URL and signing secrets. Its
// environment is the endpoint's id.
const EndpointSecret = "endpoint"

// Concerns reports whether the endpoint's scope includes the app of the project.
func (e NotificationEndpoint) Concerns(appID, projectID string) bool {
	return e.ScopeID == "" || e.ScopeID == projectID || e.ScopeID == appID
}

// Wants reports whether the endpoint is enabled and asks for the kind.
func (e NotificationEndpoint) Wants(k NotificationKind) bool {
	return !e.Disabled && e.Kinds&k.Bit() != 0
}

// DeliveryState is the state of a delivery. The numbers are stored.
type DeliveryState int32

// States of deliveries.
const (
	DeliveryPending   DeliveryState = 0
	DeliveryDelivered DeliveryState = 1
	// DeliveryDead is a delivery that is not tried again, unless it is replayed.
	DeliveryDead DeliveryState = 2
)

// Delivery is a notification to one endpoint. Its names and facts are those of the time of the event.
type Delivery struct {
	EndpointID, MessageID string
	WorkspaceID           string
	Kind                  NotificationKind
	At                    int64
	What, Why, Who        string
	// These are the names at the time of the event, each empty if it does not apply.
	Workspace, Project, Environment, App string
	AppID                                string
	Version                              int32
	RolloutID, DeploymentID              string
	Region, RegionID                     string
	// Events is how many events it merges. What and Why describe the first event.
	Events int32
	// Apps is how many apps it is about. AppNames has the first of them, as project/environment/app, separated
	// by spaces.
	Apps     int32
	AppNames string

	State    DeliveryState
	Attempts int32
	// DueAt is when a pending delivery is tried next, and when a finished one is deleted.
	DueAt int64
	// TriesSince is when its tries began.
	TriesSince int64
	DoneAt     int64
	// Problem is the error of the last try, empty for none.
	Problem string
}

// maxAppNames is how many apps a notification lists by name.
const maxAppNames = 20

// NamedApps returns how many distinct names there are, and the first of them in sorted order as
// Delivery.AppNames has them.
func NamedApps(names []string) (count int32, text string) {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	return int32(len(names)), strings.Join(names[:min(len(names), maxAppNames)], " ")
}

// AppPath returns project/environment/app, empty without an app.
func (d Delivery) AppPath() string {
	if d.App == "" {
		return ""
	}
	return d.Project + "/" + d.Environment + "/" + d.App
}

// MessageID returns the id of a history entry's notification. These ids sort in the order of the entries' ids.
func MessageID(historyID string) string {
	_, id, ok := strings.Cut(historyID, "_")
	if !ok {
		id = historyID
	}
	return "ntf_" + id
}

// DeliveryOf returns the notification of the history entry, without endpoint and names.
func DeliveryOf(h History, k NotificationKind) Delivery {
	return Delivery{
		MessageID: MessageID(h.ID), WorkspaceID: h.WorkspaceID, Kind: k, At: h.At, What: h.What, Why: h.Why, Who: h.Who,
		AppID: h.AppID, Version: h.Version, RolloutID: h.RolloutID, DeploymentID: h.DeploymentID, RegionID: h.RegionID,
		Events: 1, Apps: 1, DueAt: h.At, TriesSince: h.At,
	}
}

// RegionNotice reports that a region became unreachable or returned.
type RegionNotice struct {
	MessageID, RegionID string
	Kind                NotificationKind
	At                  int64
}

// textOf returns the What and Why that a history entry would have.
func (n RegionNotice) textOf() (what, why string) {
	if n.Kind == NotifyRegionUnreachable {
		return "RegionUnreachable", "its agent stopped reporting; its instances keep running, and nothing is deleted"
	}
	return "RegionReturned", "its agent reports again"
}

// AppPlace names the project and environment of an app.
type AppPlace struct{ Project, Environment string }

// Deliveries returns one delivery of the notice for each endpoint that it concerns, whatever the number of
// apps. apps are those with replicas in the region, names has the places of apps by id, and workspaces the
// names of workspaces by id.
func (n RegionNotice) Deliveries(r Region, endpoints []NotificationEndpoint, apps []App, names map[string]AppPlace, workspaces map[string]string) (out []Delivery) {
	what, why := n.textOf()
	for _, e := range endpoints {
		var paths []string
		for _, a := range apps {
			if a.WorkspaceID == e.WorkspaceID && e.Concerns(a.ID, a.ProjectID) {
				paths = append(paths, names[a.ID].Project+"/"+names[a.ID].Environment+"/"+a.Name)
			}
		}
		// A workspace is notified of its own regions even while they are empty.
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

// CompareDeliveries orders deliveries by their primary key.
func CompareDeliveries(a, b Delivery) int {
	return cmp.Or(cmp.Compare(a.EndpointID, b.EndpointID), cmp.Compare(a.MessageID, b.MessageID))
}

// DeliveryCount is how many deliveries of an endpoint have a state.
type DeliveryCount struct {
	EndpointID string
	State      DeliveryState
	Count      int64
}
