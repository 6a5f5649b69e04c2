package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/pkg/backoff"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// logsFlags are the flags of the logs command.
type logsFlags struct {
	follow, timestamps   bool
	tail                 int32
	since                time.Duration
	grep, region, role   string
	version              string
	tailGiven, moreGiven bool
}

func (a *app) logsCommand() *cobra.Command {
	var f logsFlags
	c := &cobra.Command{
		Use:   "logs APP|INSTANCE",
		Short: "Show or follow the output of an app or of an instance",
		Long: `Logs shows the last lines that the instances of an app wrote, merged by time, or the last lines
of one instance. With --follow it goes on with new lines. It continues after restarts and
replacements of instances, and after restarts of agents and of the control plane.

Notes about followed instances and about missing lines go to standard error.`,
		Example: "  windlass logs -f echo\n  windlass logs echo --region eu --version v3 --since 10m --grep 'error|timeout'\n  windlass logs ins_0198... --tail 500",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = a.run(func(ctx context.Context, args []string) error {
		f.tailGiven = c.Flags().Changed("tail")
		for _, name := range []string{"follow", "timestamps", "since", "grep", "region", "role", "version"} {
			f.moreGiven = f.moreGiven || c.Flags().Changed(name)
		}
		if strings.HasPrefix(args[0], "ins_") && !f.moreGiven {
			return a.lastLogs(ctx, args[0], f.tail)
		}
		return a.followLogs(ctx, args[0], f)
	})
	flags := c.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "also show new lines as they are written")
	flags.Int32Var(&f.tail, "tail", 100, "last lines to show of each instance")
	flags.DurationVar(&f.since, "since", 0, "only lines that are not older than this, such as 10m")
	flags.StringVar(&f.grep, "grep", "", "only lines that match this regular expression (RE2)")
	flags.StringVar(&f.region, "region", "", "only instances in this region")
	flags.StringVar(&f.role, "role", "", "only instances of this role")
	flags.StringVar(&f.version, "version", "", "only instances of this version, such as v3")
	flags.BoolVar(&f.timestamps, "timestamps", false, "show when each line was written")
	return c
}

// lastLogs shows the end of an instance's output. Agents of every release support this.
func (a *app) lastLogs(ctx context.Context, instance string, tail int32) error {
	resp, err := a.clients.deployments.GetLogs(ctx, &windlassv1.GetLogsRequest{Instance: instance, TailLines: tail})
	if err != nil {
		return err
	}
	if a.output != "table" {
		return a.showMessage(resp, nil)
	}
	_, err = a.dataWriter().Write(resp.Data)
	return err
}

func (f logsFlags) requestOf(a *app, name string) (*windlassv1.FollowLogsRequest, error) {
	req := &windlassv1.FollowLogsRequest{Region: f.region, Role: f.role, Grep: f.grep, TailLines: f.tail, Once: !f.follow}
	if strings.HasPrefix(name, "ins_") {
		req.Instance = name
	} else {
		req.App = a.appPath(name)
	}
	if f.since < 0 {
		return nil, fmt.Errorf("--since %s: give how long ago, such as 10m", f.since)
	}
	if f.since > 0 {
		req.Since = time.Now().Add(-f.since).UnixMilli()
		if !f.tailGiven {
			req.TailLines = 0
		}
	}
	if f.version != "" {
		v, err := strconv.ParseInt(strings.TrimPrefix(f.version, "v"), 10, 32)
		if err != nil || v < 1 {
			return nil, fmt.Errorf("--version %s: give a version such as v3", f.version)
		}
		req.Version = int32(v)
	}
	return req, nil
}

// followLogs shows lines until there are no more, or the user stops it. After a broken stream it continues at
// the position of the last line.
func (a *app) followLogs(ctx context.Context, name string, f logsFlags) error {
	req, err := f.requestOf(a, name)
	if err != nil {
		return err
	}
	if req.Once {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	p := &logPrinter{app: a, flags: f, single: req.Instance != "", about: map[string]*windlassv1.Instance{}, colours: map[string]int{}}
	at := map[string]*windlassv1.LogPosition{}
	for attempt := 0; ; attempt++ {
		stream, err := a.clients.logs.FollowLogs(ctx, req)
		if err == nil {
			for stream.Receive() {
				attempt = 0
				for _, position := range stream.Msg().GetPositions() {
					at[position.GetInstance()] = position.GetPosition()
				}
				if err := p.print(stream.Msg()); err != nil {
					return errors.Join(err, stream.Close())
				}
			}
			err = stream.Err()
			_ = stream.Close()
		}
		switch {
		case ctx.Err() != nil && f.follow:
			return &ExitError{Code: codeInterrupted}
		case err == nil, !f.follow, isFinal(err):
			return err
		}
		if attempt == 1 {
			a.infof("the control plane does not answer: trying again until it does")
		}
		// The next request has the positions, so that no line is repeated or left out.
		req.Positions = nil
		for _, id := range slices.Sorted(maps.Keys(at)) {
			req.Positions = append(req.Positions, &windlassv1.InstancePosition{Instance: id, Position: at[id]})
		}
		if len(req.Positions) > maxPositions {
			req.Positions = req.Positions[len(req.Positions)-maxPositions:]
		}
		if backoff.Sleep(ctx, backoff.Policy{Max: 5 * time.Second}.Delay(attempt, nil)) != nil {
			return &ExitError{Code: codeInterrupted}
		}
	}
}

// maxPositions is the maximum number of positions in a request of the API. The positions of the newest instances are
// kept, because ids are ordered by time.
const maxPositions = 1000

// logPrinter shows lines. With several instances, each line begins with the name of its instance.
type logPrinter struct {
	app     *app
	flags   logsFlags
	single  bool
	about   map[string]*windlassv1.Instance
	colours map[string]int
	width   int
}

// instanceColours are terminal colours that are readable on dark and on light backgrounds.
var instanceColours = []string{"36", "33", "35", "32", "34", "31", "96", "95"}

func (p *logPrinter) print(r *windlassv1.FollowLogsResponse) error {
	if p.app.output != "table" {
		if len(r.GetLines()) == 0 && len(r.GetNotes()) == 0 {
			return nil
		}
		return p.app.showMessage(r, nil)
	}
	for _, n := range r.GetNotes() {
		p.printNote(n)
	}
	out := p.app.dataWriter()
	for _, l := range r.GetLines() {
		if err := p.printLine(out, l); err != nil {
			return err
		}
	}
	return nil
}

func (p *logPrinter) printNote(n *windlassv1.LogNote) {
	switch n.GetKind() {
	case windlassv1.LogNote_KIND_BEGAN:
		p.about[n.GetInstance()] = n.GetAbout()
		p.width = max(p.width, len(p.labelOf(n.GetInstance())))
		if _, seen := p.colours[n.GetInstance()]; !seen {
			p.colours[n.GetInstance()] = len(p.colours) % len(instanceColours)
		}
		if !p.single && p.flags.follow {
			p.app.infof("+ %s  %s", p.labelOf(n.GetInstance()), n.GetInstance())
		}
	case windlassv1.LogNote_KIND_ENDED:
		p.app.infof("- %s  %s", cmp.Or(p.labelOf(n.GetInstance()), n.GetInstance()), n.GetMessage())
	default:
		text := n.GetMessage()
		if name := p.labelOf(n.GetInstance()); name != "" {
			text = name + ": " + text
		}
		p.app.infof("! %s", text)
	}
}

// labelOf returns the name of an instance for people, or the id of an unknown instance.
func (p *logPrinter) labelOf(id string) string {
	i := p.about[id]
	if i == nil {
		return id
	}
	return fmt.Sprintf("%s %s %s/%d.%d", versionText(i.GetVersion()), i.GetRegion(), i.GetRole(), i.GetGroup(), i.GetSlot())
}

func (p *logPrinter) printLine(out io.Writer, l *windlassv1.LogLine) error {
	if !p.single {
		p.setColour(instanceColours[p.colours[l.GetInstance()]])
		_, err := fmt.Fprintf(out, "%-*s |", p.width, p.labelOf(l.GetInstance()))
		p.setColour("0")
		if err != nil {
			return err
		}
		if _, err := io.WriteString(out, " "); err != nil {
			return err
		}
	}
	text := l.GetText()
	if p.flags.timestamps {
		text = time.UnixMilli(l.GetAt()).UTC().Format("2006-01-02T15:04:05.000Z") + " " + text
	}
	_, err := io.WriteString(out, text+"\n")
	return err
}

// setColour sets the colour of the text that follows, on a terminal that shows colours.
func (p *logPrinter) setColour(code string) {
	if s, ok := p.app.Stdout.(*screen); ok && p.app.Getenv("NO_COLOR") == "" && p.app.Getenv("TERM") != "dumb" {
		s.writeControl("\x1b[" + code + "m")
	}
}
