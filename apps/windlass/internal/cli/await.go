package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// await follows an app until the deployment serves or has failed. With settle,
// it waits until the app has what was asked of it (a scale).
func (a *app) await(ctx context.Context, appID, deploymentID string, settle bool, patience time.Duration) error {
	p := &progress{app: a, started: time.Now(), live: a.interactive()}
	var last *windlassv1.WatchAppResponse
	err := a.follow(ctx, appID, patience, func(r *windlassv1.WatchAppResponse) (bool, error) {
		last = r
		if r.Deleted {
			return true, &ExitError{Code: 1, Message: "the app was deleted meanwhile"}
		}
		p.show(r, deploymentID)
		return p.verdict(r, deploymentID, settle)
	})
	p.end()
	if err != nil {
		return err
	}
	if a.output != "table" {
		return a.show(last.App, nil)
	}
	fmt.Fprintf(a.Stdout, "%s %s is ready: %d of %d replicas in %s, after %s\n", //nolint:errcheck // nobody to tell
		last.App.Name, version(last.App.LiveVersion), last.App.ReadyReplicas, last.App.Replicas,
		strings.Join(last.App.Regions, ", "), short(time.Since(p.started)))
	for _, url := range last.App.Urls {
		fmt.Fprintln(a.Stdout, url) //nolint:errcheck // nobody to tell
	}
	return nil
}

// follow calls each with every picture of the app until it says done. A stream
// that breaks is opened again.
func (a *app) follow(ctx context.Context, appID string, patience time.Duration, each func(*windlassv1.WatchAppResponse) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for attempt := 0; ; attempt++ {
		stream, err := a.clients.apps.WatchApp(ctx, &windlassv1.WatchAppRequest{App: appID})
		if err == nil {
			for stream.Receive() {
				attempt = 0
				done, err := each(stream.Msg())
				if done || err != nil {
					return errors.Join(err, stream.Close())
				}
			}
			err = stream.Err()
			_ = stream.Close()
		}
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return &ExitError{Code: 3, Message: fmt.Sprintf("still under way after %s: `windlass status` tells how it goes on", short(patience))}
		case ctx.Err() != nil:
			return &ExitError{Code: 130, Message: "no longer watching; the rollout goes on by itself (`windlass cancel` stops it)"}
		case err != nil && final(err):
			return err
		}
		if err := backoff.Sleep(ctx, backoff.Policy{Max: 5 * time.Second}.Delay(attempt, nil)); err != nil {
			continue
		}
	}
}

// final errors do not go away by asking again.
func final(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeNotFound, connect.CodeInvalidArgument, connect.CodeUnimplemented:
		return true
	}
	return false
}

// verdict tells whether there is nothing more to wait for.
func (p *progress) verdict(r *windlassv1.WatchAppResponse, deploymentID string, settle bool) (bool, error) {
	ready := r.App.Status == windlassv1.AppStatus_APP_STATUS_READY ||
		r.App.Status == windlassv1.AppStatus_APP_STATUS_IDLE && r.App.Replicas == 0
	if settle {
		switch {
		case ready && r.App.LiveDeploymentId == deploymentID:
			return true, nil
		case r.App.LiveDeploymentId != deploymentID && r.App.LiveDeploymentId != "":
			return true, &ExitError{Code: 1, Message: "another version became live meanwhile"}
		}
		return false, nil
	}
	d := find(r, deploymentID)
	if d == nil {
		return false, nil
	}
	switch d.Status {
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING,
		windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_DEPLOYING, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_NETWORK:
		// Under way.
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY:
		return ready && r.App.LiveDeploymentId == deploymentID, nil
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_FAILED:
		return true, &ExitError{Code: 1, Message: fmt.Sprintf("%s %s failed: %s\n%s", r.App.Name, version(d.Version), inFull(d.Reason, d.Message), afterwards(r.App))}
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED:
		return true, &ExitError{Code: 1, Message: fmt.Sprintf("%s %s was superseded by a newer deployment", r.App.Name, version(d.Version))}
	case windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED:
		return true, &ExitError{Code: 1, Message: fmt.Sprintf("%s %s was stopped: %s", r.App.Name, version(d.Version), because(d.Reason, d.Message))}
	}
	return false, nil
}

func afterwards(app *windlassv1.App) string {
	if app.LiveVersion == 0 {
		return "Nothing is live. `windlass history " + app.Name + "` tells what happened."
	}
	return fmt.Sprintf("%s is still live. `windlass history %s` tells what happened.", version(app.LiveVersion), app.Name)
}

func find(r *windlassv1.WatchAppResponse, deploymentID string) *windlassv1.Deployment {
	for _, d := range r.Deployments {
		if d.Id == deploymentID {
			return d
		}
	}
	return nil
}

// awaitDeleted waits until nothing is left of an app.
func (a *app) awaitDeleted(ctx context.Context, name, appID string, patience time.Duration) error {
	p := &progress{app: a, started: time.Now(), live: a.interactive()}
	err := a.follow(ctx, appID, patience, func(r *windlassv1.WatchAppResponse) (bool, error) {
		if !r.Deleted {
			p.show(r, "")
		}
		return r.Deleted, nil
	})
	p.end()
	// An app that is gone before we look is not found.
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return err
	}
	fmt.Fprintf(a.Stdout, "%s is deleted, after %s\n", name, short(time.Since(p.started))) //nolint:errcheck // nobody to tell
	return nil
}

// progress shows how a rollout goes: on a terminal as a block that is redrawn,
// elsewhere as a line for each change.
type progress struct {
	app     *app
	started time.Time
	live    bool
	drawn   int
	last    string
}

func (p *progress) show(r *windlassv1.WatchAppResponse, deploymentID string) {
	lines := p.lines(r, deploymentID)
	text := strings.Join(lines, "\n")
	if text == p.last || len(lines) == 0 {
		return
	}
	if !p.live {
		old := map[string]bool{}
		for l := range strings.SplitSeq(p.last, "\n") {
			old[l] = true
		}
		for _, l := range lines {
			if !old[l] {
				p.app.infof("  %5s  %s", short(time.Since(p.started)), l)
			}
		}
		p.last = text
		return
	}
	p.last = text
	var b strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", p.drawn)
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "\x1b[2K  %s\n", l)
	}
	// Lines of a longer picture before.
	for range p.drawn - len(lines) {
		b.WriteString("\x1b[2K\n")
	}
	p.drawn = max(p.drawn, len(lines))
	fmt.Fprint(p.app.Stderr, b.String()) //nolint:errcheck // nobody to tell
}

func (p *progress) end() { p.drawn = 0 }

// lines is the picture: the deployment that is waited for, or all, by region.
func (p *progress) lines(r *windlassv1.WatchAppResponse, deploymentID string) []string {
	var out []string
	if ro := r.Rollout; ro.GetHold() != nil && (deploymentID == "" || ro.DeploymentId == deploymentID) {
		out = append(out, version(ro.Version)+" is "+holdText(ro.Hold))
	}
	for _, d := range r.Deployments {
		if deploymentID != "" && d.Id != deploymentID {
			continue
		}
		for _, t := range d.Regions {
			if t.Status == windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
				continue
			}
			line := fmt.Sprintf("%-4s %-16s %-9s %s %d/%d ready", version(d.Version), t.Region, word(t.Status, "TOPOLOGY_STATUS_"), bar(t.Ready, t.Replicas), t.Ready, t.Replicas)
			if t.RegionUnreachable {
				line += "  region unreachable"
			}
			if why := because(t.Reason, t.Message); why != "" && t.Ready < t.Replicas {
				line += "  " + firstLine(why)
			}
			out = append(out, line)
		}
	}
	return out
}

// bar is ten characters long.
func bar(n, of int32) string {
	if of <= 0 {
		return "[----------]"
	}
	full := int(min(n, of) * 10 / of)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", 10-full) + "]"
}

func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	if len(line) > 100 {
		return line[:97] + "..."
	}
	if more {
		return line + " ..."
	}
	return line
}
