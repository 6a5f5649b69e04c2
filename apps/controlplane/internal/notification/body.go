// Package notification writes notifications and signs them: their bodies as CloudEvents or for Slack, and the
// signature of the Standard Webhooks scheme. It sends nothing.
package notification

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
)

// types has the event type of each kind. Receivers match it, so a type keeps its meaning. A body that receivers
// of v1 would misread needs a new type.
var types = map[model.NotificationKind]string{
	model.NotifyRolloutFailed:     "run.windlass.rollout.failed.v1",
	model.NotifyRolledBack:        "run.windlass.rollout.rolled_back.v1",
	model.NotifyApprovalNeeded:    "run.windlass.rollout.approval_needed.v1",
	model.NotifyStartHeld:         "run.windlass.rollout.held.v1",
	model.NotifyRegionUnreachable: "run.windlass.region.unreachable.v1",
	model.NotifyRegionBack:        "run.windlass.region.back.v1",
	model.NotifyTest:              "run.windlass.test.v1",
}

// titles begin the Slack text of notifications, by kind.
var titles = map[model.NotificationKind]string{
	model.NotifyRolloutFailed:     "Rollout failed",
	model.NotifyRolledBack:        "Rolling back",
	model.NotifyApprovalNeeded:    "Approval needed",
	model.NotifyStartHeld:         "Start held by a freeze",
	model.NotifyRegionUnreachable: "Region unreachable",
	model.NotifyRegionBack:        "Region back",
	model.NotifyTest:              "Test",
}

// Type returns the event type of the kind.
func Type(k model.NotificationKind) string { return types[k] }

// event is a CloudEvent 1.0 in structured mode.
type event struct {
	SpecVersion     string `json:"specversion"`
	ID              string `json:"id"`
	Source          string `json:"source"`
	Type            string `json:"type"`
	Subject         string `json:"subject,omitempty"`
	Time            string `json:"time"`
	DataContentType string `json:"datacontenttype"`
	Data            data   `json:"data"`
}

type data struct {
	What         string   `json:"what"`
	Why          string   `json:"why"`
	Who          string   `json:"who"`
	Workspace    string   `json:"workspace"`
	Project      string   `json:"project,omitempty"`
	Environment  string   `json:"environment,omitempty"`
	App          string   `json:"app,omitempty"`
	AppID        string   `json:"app_id,omitempty"`
	Version      int32    `json:"version,omitempty"`
	RolloutID    string   `json:"rollout_id,omitempty"`
	DeploymentID string   `json:"deployment_id,omitempty"`
	Region       string   `json:"region,omitempty"`
	RegionID     string   `json:"region_id,omitempty"`
	Events       int32    `json:"events"`
	Apps         int32    `json:"apps"`
	AppNames     []string `json:"app_names,omitempty"`
}

// Body returns the notification's body in the format, and its content type. Each try has the same body.
func Body(d model.Delivery, f model.NotificationFormat) (body []byte, contentType string, err error) {
	if f == model.FormatSlack {
		body, err = json.Marshal(struct {
			Text string `json:"text"`
		}{slackText(d)})
		return body, "application/json", err
	}
	body, err = json.Marshal(event{
		SpecVersion: "1.0", ID: d.MessageID, Source: "/workspaces/" + d.Workspace, Type: types[d.Kind], Subject: subjectOf(d),
		Time: time.UnixMilli(d.At).UTC().Format("2006-01-02T15:04:05.000Z07:00"), DataContentType: "application/json",
		Data: data{
			What: d.What, Why: analysis.Printable(d.Why), Who: analysis.Printable(d.Who), Workspace: d.Workspace,
			Project: d.Project, Environment: d.Environment, App: d.App, AppID: d.AppID, Version: d.Version, RolloutID: d.RolloutID,
			DeploymentID: d.DeploymentID, Region: d.Region, RegionID: d.RegionID, Events: d.Events, Apps: d.Apps,
			AppNames: strings.Fields(d.AppNames),
		},
	})
	return body, "application/cloudevents+json", err
}

// subjectOf names the app or the region of the event. It is empty for a test and for several events.
func subjectOf(d model.Delivery) string {
	switch {
	case d.Events > 1:
		return ""
	case d.App != "":
		return "apps/" + d.AppPath()
	case d.Region != "":
		return "regions/" + d.Region
	}
	return ""
}

// slackText returns the notification as one message of Slack. It escapes the three characters that Slack interprets.
func slackText(d model.Delivery) string {
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace
	title := "*" + titles[d.Kind] + "*"
	why := escape(analysis.Printable(d.Why))
	names := strings.Fields(d.AppNames)
	switch {
	case d.Events > 1:
		return fmt.Sprintf("%s: %d times, of %s. The first: %s: %s", title, d.Events, someApps(d.Apps, names), d.AppPath(), why)
	case d.App != "":
		text := title + ": " + d.AppPath()
		if d.Version != 0 {
			text += fmt.Sprintf(" v%d", d.Version)
		}
		if d.Region != "" {
			text += " in " + d.Region
		}
		return text + ": " + why
	case d.Region != "":
		return fmt.Sprintf("%s: %s, with %s: %s", title, d.Region, someApps(d.Apps, names), why)
	}
	return title + ": " + why
}

// someApps says how many apps there are, and names the first of them.
func someApps(n int32, names []string) string {
	switch {
	case n == 0:
		return "no apps"
	case n == 1:
		return "app " + strings.Join(names, " ")
	case int(n) > len(names):
		return fmt.Sprintf("%d apps: %s and others", n, strings.Join(names, ", "))
	}
	return fmt.Sprintf("%d apps: %s", n, strings.Join(names, ", "))
}
