package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const flagResourceVersion = "resource-version"

func (a *app) pinCommand() *cobra.Command {
	var weight, why, override string
	var replicas int32
	var version int64
	var regions []string
	var wait bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "pin APP VERSION --weight PERCENT",
		Short: "Keep a version running next to the live one",
		Long: `Pin keeps a version running next to the live one until ` + "`windlass unpin`" + `, with a share of the
traffic and its own replicas. A version that does not run starts again, and gets its share when it
is ready. Rollouts, rollbacks, scaling and cleanup do not change it. Other versions divide the
traffic that pins leave. If the pinned version fails in a region, the other versions get its share
there: pin it again to retry. A call with other values changes the pin.

With --resource-version, nothing changes if somebody changed the pin since it was read.`,
		Example: `  windlass pin echo v3 --weight 10% --why "compare with v4"
  windlass pin echo v3 --weight 30% --replicas 2 --region eu-west-1`,
		Args: cobra.ExactArgs(2),
	}
	c.RunE = a.run(func(ctx context.Context, args []string) error {
		req := &windlassv1.PinVersionRequest{Mutation: newMutation(), App: a.appPath(args[0]), Regions: regions, Why: why, OverrideFreeze: override}
		var err error
		if req.Version, err = versionNumber(args[1]); err != nil {
			return err
		}
		if req.Weight, err = parsePercent("weight", weight); err != nil {
			return err
		}
		if replicas != 0 {
			req.Replicas = &replicas
		}
		if c.Flags().Changed(flagResourceVersion) {
			req.ResourceVersion = &version
		}
		resp, err := a.clients.apps.PinVersion(ctx, req)
		if err != nil {
			return err
		}
		switch {
		case resp.Unchanged:
			a.infof("%s: %s is pinned with these values already", args[0], versionText(req.Version))
		default:
			a.infof("%s: %s is pinned at %d %% of the traffic of %s", args[0], versionText(req.Version), req.Weight, strings.Join(pinRegions(resp.Pin), ", "))
		}
		if !wait {
			return a.showPin(resp, resp.Pin)
		}
		last, err := a.awaitPin(ctx, args[0], req.App, req.Version, patience)
		if last == nil && err == nil {
			err = &ExitError{Code: codeSuperseded, Message: fmt.Sprintf("the pin of %s was ended meanwhile", versionText(req.Version))}
		}
		if last != nil {
			resp.Pin = last
		}
		if last != nil || a.output != "table" {
			err = errors.Join(a.showPin(resp, resp.Pin), err)
		}
		return err
	})
	flags := c.Flags()
	flags.StringVar(&weight, "weight", "", "percent of the traffic in each of its regions, such as 10%")
	flags.Int32Var(&replicas, "replicas", 0, "replicas in each region; default: the number that the version has or had there")
	flags.StringSliceVar(&regions, "region", nil, "only in this region; can be repeated; default: the regions of the existing pin or of the version")
	flags.StringVar(&why, "why", "", "why, for the history")
	flags.BoolVar(&wait, "wait", true, "wait until the version serves or has failed in each region")
	overrideFlag(c, &override)
	flags.Int64Var(&version, flagResourceVersion, 0, "fail if the pin has another resource version, as in the output of windlass pins APP -o json; 0: fail if it is pinned")
	flags.DurationVar(&patience, "patience", time.Hour, "how long to wait")
	mustSucceed(c.MarkFlagRequired("weight"))
	return c
}

func (a *app) unpinCommand() *cobra.Command {
	var why string
	var version int64
	var wait bool
	var patience time.Duration
	c := &cobra.Command{
		Use:   "unpin APP VERSION",
		Short: "End a pin: other versions get its share, and its replicas stop",
		Args:  cobra.ExactArgs(2),
	}
	c.RunE = a.run(func(ctx context.Context, args []string) error {
		n, err := versionNumber(args[1])
		if err != nil {
			return err
		}
		path := a.appPath(args[0])
		req := &windlassv1.UnpinVersionRequest{Mutation: newMutation(), App: path, Version: n, Why: why}
		if c.Flags().Changed(flagResourceVersion) {
			req.ResourceVersion = &version
		}
		resp, err := a.clients.apps.UnpinVersion(ctx, req)
		if err != nil {
			return err
		}
		a.infof("%s: %s is no longer pinned", args[0], versionText(n))
		if !wait {
			return a.showPin(resp, resp.Pin)
		}
		last, err := a.awaitPin(ctx, args[0], path, n, patience)
		if last != nil {
			resp.Pin = last
		}
		if last != nil || a.output != "table" {
			err = errors.Join(a.showPin(resp, resp.Pin), err)
		}
		return err
	})
	c.Flags().StringVar(&why, "why", "", "why, for the history")
	c.Flags().Int64Var(&version, flagResourceVersion, 0, "fail if the pin has another resource version, as in the output of windlass pins APP -o json")
	c.Flags().BoolVar(&wait, "wait", true, "wait until the replicas of the pin are gone")
	c.Flags().DurationVar(&patience, "patience", time.Hour, "how long to wait")
	return c
}

func (a *app) pinsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pins APP",
		Short: "List the pinned versions of an app",
		Args:  cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, args []string) error {
			resp, err := a.clients.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: a.appPath(args[0])})
			if err != nil {
				return err
			}
			return showList(a, resp.App.Pins, func(w *tabwriter.Writer) { pinTable(w, resp.App.Pins) })
		}),
	}
}

// showPin shows the answer of a call, as a table of its pin.
func (a *app) showPin(resp proto.Message, pin *windlassv1.Pin) error {
	return a.showMessage(resp, func(w *tabwriter.Writer) { pinTable(w, []*windlassv1.Pin{pin}) })
}

// awaitPin follows the app until the pin serves or has failed in each of its regions, or is gone. A pin that failed
// in a region is an error. It returns the last state of the pin, or nil if it is gone.
func (a *app) awaitPin(ctx context.Context, name, path string, number int32, patience time.Duration) (last *windlassv1.Pin, err error) {
	gone := false
	err = a.followApp(ctx, path, "", patience, func(r *windlassv1.WatchAppResponse) (bool, error) {
		if r.Deleted {
			return true, &ExitError{Code: 1, Message: "the app was deleted meanwhile"}
		}
		last, gone = nil, true
		for _, p := range r.App.Pins {
			if p.Version == number {
				last, gone = p, false
			}
		}
		return gone || pinSettled(last), nil
	})
	if err != nil {
		return last, err
	}
	if gone {
		a.infof("%s: %s is unpinned, and its replicas are gone", name, versionText(number))
		return nil, nil
	}
	for _, r := range last.Regions {
		if r.State == windlassv1.PinRegion_STATE_FAILED {
			return last, &ExitError{Code: 1, Message: fmt.Sprintf("%s %s failed in %s: %s\nOther versions have its share. `windlass pin` tries again, `windlass unpin` ends the pin.",
				name, versionText(number), r.Region, inFull(r.Reason, r.Message))}
		}
	}
	return last, nil
}

// pinSettled reports whether the pin will not change further by itself.
func pinSettled(p *windlassv1.Pin) bool {
	if p.Removing {
		return false
	}
	for _, r := range p.Regions {
		switch r.State {
		case windlassv1.PinRegion_STATE_SERVING:
			if r.Weight != p.Weight {
				return false
			}
		case windlassv1.PinRegion_STATE_FAILED:
		default:
			return false
		}
	}
	return true
}

func pinRegions(p *windlassv1.Pin) (names []string) {
	for _, r := range p.GetRegions() {
		if r.State != windlassv1.PinRegion_STATE_LEAVING {
			names = append(names, r.Region)
		}
	}
	return names
}

// pinLine returns the pin as one line: "v1 10 %: us-east-1 serving, eu-west-1 failed (CrashLoop)".
func pinLine(p *windlassv1.Pin) string {
	var parts []string
	for _, r := range p.GetRegions() {
		text := r.Region + " " + enumText(r.State, "STATE_")
		if r.State == windlassv1.PinRegion_STATE_FAILED {
			text += " (" + r.Reason + ")"
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%s %d %%: %s", versionText(p.Version), p.Weight, strings.Join(parts, ", "))
}

func pinTable(w *tabwriter.Writer, pins []*windlassv1.Pin) {
	if len(pins) == 0 {
		writeRow(w, "Nothing is pinned: `windlass pin APP VERSION --weight 10%` keeps a version running next to the live one.")
		return
	}
	writeRow(w, "VERSION", "WEIGHT", "REGION", "STATE", "READY", "SHARE", "BY", "AGE", "WHY")
	var cut cutTexts
	for _, p := range pins {
		for _, r := range p.Regions {
			why := firstLine(reasonText(r.Reason, r.Message))
			cut.add(fmt.Sprintf("%s in %s", versionText(p.Version), r.Region), r.Reason, r.Message)
			if r.RegionUnreachable {
				why = strings.TrimSpace("region unreachable " + why)
			}
			if why == "" {
				why = p.Why
			}
			writeRow(w, versionText(p.Version), fmt.Sprintf("%d %%", p.Weight), r.Region, enumText(r.State, "STATE_"),
				fmt.Sprintf("%d/%d", r.Ready, r.Replicas), fmt.Sprintf("%d %%", r.Weight), orDash(p.By), ageText(p.CreatedAt), firstLine(why))
		}
	}
	cut.print(w)
}

// trafficShare returns a deployment's percent of a region's traffic. A pinned deployment gets its weight. The
// others share the rest by their weights.
func trafficShare(app *windlassv1.App, deploymentID, region string, weight int32) string {
	rest := 100.0
	for _, p := range app.GetPins() {
		for _, r := range p.GetRegions() {
			switch {
			case r.Region != region:
			case p.DeploymentId == deploymentID:
				return strconv.Itoa(int(weight))
			default:
				rest -= float64(r.Weight)
			}
		}
	}
	return strconv.FormatFloat(math.Round(float64(weight)*rest)/100, 'f', -1, 64)
}

// versionNumber parses "v3" or "3".
func versionNumber(text string) (int32, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(text, "v"), 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a version: write v3, or 3 (`windlass list versions APP` lists them)", text)
	}
	return int32(n), nil
}

// parsePercent parses "10%" or "10".
func parsePercent(flag, text string) (int32, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "%")), 10, 32)
	if err != nil || n < 1 || n > 99 {
		return 0, fmt.Errorf("--%s=%q: write a whole number of percent from 1 to 99, such as 10%%", flag, text)
	}
	return int32(n), nil
}
