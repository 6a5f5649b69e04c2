package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// exportFlags has the flags of export.
type exportFlags struct {
	all, force          bool
	environment, folder string
}

func (a *app) exportCommand() *cobra.Command {
	var flags exportFlags
	c := &cobra.Command{
		Use:   "export [APP...]",
		Short: "Write app files from the live versions of apps",
		Long: `Export writes the app files of apps that have none, because they were made with the API or
the dashboard. A file describes the live version: the spec with all defaults, the replicas of each
region, the rollout policy, the scaling and the freeze of the app's file. Secrets are
references. Variables of the environment, versions of secrets, and what a preset generates
are left out: each deploy adds them. Pins, domains and keys are not in app files.

One APP goes to standard output. With --folder, each app gets a file APP.yaml in the folder,
with --all PROJECT/ENVIRONMENT/APP.yaml. If the folder already has a file of the app, export
writes that file instead. It keeps the file if a deploy of it would change nothing.

Nothing is written unless each file reads as the same app again, and the control plane says
that its deploy would change nothing. If a deploy would change the app, for example because a
variable of the environment is newer than the version, the command prints the changes. A file
of the folder that differs from the live version is not replaced. --force writes in both cases.

Apps of which no version is live or in flight have no file. Naming one of them is an error.

Exit code: 0 if all files are written or unchanged, else 1. Standard error says why.`,
		Example: "  windlass export echo > echo.yaml\n  windlass export --environment search/staging --folder apps\n  windlass export --all --folder apps\n  windlass deploy -f apps --prune --dry-run=server",
		RunE: a.run(func(ctx context.Context, args []string) error {
			if err := flags.checkArgs(args); err != nil {
				return err
			}
			e := exporter{app: a, exportFlags: flags}
			apps, err := e.exportAll(ctx, args)
			if err != nil {
				return err
			}
			if flags.folder == "" {
				return a.printAppText(apps[0].text)
			}
			return e.writeAll(ctx, apps)
		}),
	}
	c.Flags().BoolVar(&flags.all, "all", false, "all apps of the workspace")
	c.Flags().StringVar(&flags.environment, "environment", "", "all apps of this environment, PROJECT/ENVIRONMENT")
	c.Flags().StringVar(&flags.folder, "folder", "", "folder for the files; it is created")
	c.Flags().BoolVar(&flags.force, "force", false, "replace files that differ, and write files whose deploy would change the app")
	mustSucceed(c.MarkFlagDirname("folder"))
	return c
}

// checkArgs checks the flags together with the arguments.
func (f exportFlags) checkArgs(args []string) error {
	chosen := 0
	for _, is := range []bool{len(args) > 0, f.all, f.environment != ""} {
		if is {
			chosen++
		}
	}
	switch {
	case chosen == 0:
		return errors.New("name the apps, or use --environment PROJECT/ENVIRONMENT or --all")
	case chosen > 1:
		return errors.New("use only one of APP, --environment and --all")
	case f.folder == "" && len(args) != 1:
		return errors.New("--folder is missing: name a folder for the files, for example --folder apps")
	}
	return nil
}

// exportedApp is an app with the file of its live version.
type exportedApp struct {
	path string
	// file is the app's file as deploy reads it, and text its YAML.
	file *appFile
	text []byte
	// changes are what a deploy of the file would change.
	changes []string
	// isLive is false while the app's first version is in flight.
	isLive  bool
	version int32
}

func (x *exportedApp) unlikeText() string {
	return fmt.Sprintf("%s: a deploy of its file does not leave the app as it is:\n  %s", x.path, strings.Join(x.changes, "\n  "))
}

// exporter makes the files of apps.
type exporter struct {
	*app
	exportFlags
	// freezes are the freezes of app files, by the paths of their apps.
	freezes map[string]*windlassv1.FileFreeze
	// presets are the presets of the workspace that were read, by name and version. nil: the preset does not exist any
	// more.
	presets map[string]*preset.Preset
}

// noFileError says why an app has no file, and what to do.
type noFileError struct{ why, fix string }

func (e *noFileError) Error() string { return e.why + ": " + e.fix }

// exportAll returns the requested apps, sorted by path. Its error has the faults of all apps.
func (e *exporter) exportAll(ctx context.Context, args []string) ([]*exportedApp, error) {
	refs, err := e.appRefs(ctx, args)
	if err != nil {
		return nil, err
	}
	if err := e.readFreezes(ctx); err != nil {
		return nil, err
	}
	var apps []*exportedApp
	var faults []string
	fix := ""
	for _, ref := range refs {
		x, err := e.exportApp(ctx, ref)
		missing, isMissing := errors.AsType[*noFileError](err)
		switch {
		case isMissing && len(args) == 0:
			e.infof("%s: %s, so it has no file; windlass deploy --prune deletes apps without a file", ref, missing.why)
		case rpc.DetailOf(err) != nil && len(refs) == 1:
			return nil, err
		case err != nil:
			faults = append(faults, ref+": "+Explain(err))
		case len(x.changes) > 0 && !e.force:
			faults = append(faults, x.unlikeText())
			fix = " Values that each deploy adds are newer than the live version, such as variables of the environment, secrets or a preset. " +
				"--force writes the files all the same, and the next deploy of them makes these changes."
		case slices.ContainsFunc(apps, func(y *exportedApp) bool { return y.path == x.path }): // it is named twice
		default:
			if len(x.changes) > 0 {
				e.infof("%s", x.unlikeText())
			}
			apps = append(apps, x)
		}
	}
	if len(faults) > 0 {
		return nil, nothingWritten(faults, fix)
	}
	if len(apps) == 0 {
		return nil, errors.New("no app has a version that is live or in flight: there is no file to write")
	}
	slices.SortFunc(apps, func(x, y *exportedApp) int { return strings.Compare(x.path, y.path) })
	return apps, nil
}

// nothingWritten is the error of an export that has faults.
func nothingWritten(faults []string, fix string) error {
	return &ExitError{Code: 1, Message: strings.Join(append(faults, "Nothing was written."+fix), "\n")}
}

// pathOfApp returns "project/environment/name".
func pathOfApp(x *windlassv1.App) string {
	return x.GetProjectName() + "/" + x.GetEnvironmentName() + "/" + x.GetName()
}

// appRefs returns the ids or paths of the apps to export.
func (e *exporter) appRefs(ctx context.Context, args []string) (refs []string, err error) {
	for _, name := range args {
		refs = append(refs, e.appPath(name))
	}
	if len(args) > 0 {
		return refs, nil
	}
	environment := e.environment
	if environment != "" {
		environment = e.inProject(environment)
	}
	apps, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.App, *windlassv1.PageResponse, error) {
		r, err := e.clients.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: p, Environment: environment})
		return r.GetApps(), r.GetPage(), err
	})
	for _, x := range apps {
		refs = append(refs, pathOfApp(x))
	}
	return refs, err
}

// readFreezes reads the freezes that come from app files, without ended ones.
func (e *exporter) readFreezes(ctx context.Context) error {
	all, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.Freeze, *windlassv1.PageResponse, error) {
		resp, err := e.clients.freezes.ListFreezes(ctx, &windlassv1.ListFreezesRequest{Page: p})
		return resp.GetFreezes(), resp.GetPage(), err
	})
	e.freezes = map[string]*windlassv1.FileFreeze{}
	now := time.Now().UnixMilli()
	for _, f := range all {
		if !f.GetFromFile() || f.GetUntil() != 0 && f.GetUntil() <= now {
			continue
		}
		own := &windlassv1.FileFreeze{Reason: f.GetReason(), OnStart: f.GetOnStart(), From: f.GetFrom(), Until: f.GetUntil(), Weekly: f.GetWeekly()}
		if len(own.Weekly) > 0 {
			own.TimeZone = f.GetTimeZone()
		}
		e.freezes[f.GetApp()] = own
	}
	return err
}

// exportApp returns the app with its file, and what a deploy of the file would change.
func (e *exporter) exportApp(ctx context.Context, ref string) (*exportedApp, error) {
	got, err := e.clients.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: ref})
	if err != nil {
		return nil, err
	}
	app := got.GetApp()
	for _, name := range []string{app.GetProjectName(), app.GetEnvironmentName(), app.GetName()} {
		if !ident.ValidName(name) {
			return nil, fmt.Errorf("%q cannot be the name of a file: rename it", truncateText(name))
		}
	}
	x := exportedApp{path: pathOfApp(app), isLive: app.GetLiveDeploymentId() != ""}
	request := &windlassv1.GetDeploymentRequest{Deployment: app.GetLiveDeploymentId()}
	switch {
	case app.GetStatus() == windlassv1.AppStatus_APP_STATUS_DELETING:
		return nil, &noFileError{"it is being deleted", "name other apps"}
	case !x.isLive && app.GetRolloutId() == "":
		return nil, &noFileError{"no version is live or in flight", "deploy one first, or delete the app"}
	case !x.isLive:
		request = &windlassv1.GetDeploymentRequest{App: app.GetId(), Version: app.GetLatestVersion()}
	}
	deployed, err := e.clients.deployments.GetDeployment(ctx, request)
	if err != nil {
		return nil, err
	}
	x.version = deployed.GetDeployment().GetVersion()
	spec := deployed.GetDeployment().GetSpec()
	whole, err := liveFile(app, spec, e.freezes[x.path])
	if err != nil {
		return nil, err
	}
	whole.adoptCounts(deployed.GetDeployment().GetRegions())
	short, err := e.withoutPreset(ctx, whole, spec.GetGeneratedBy())
	if err != nil {
		return nil, err
	}
	if short != nil {
		if err := e.settleFile(ctx, &x, short); err != nil {
			return nil, err
		}
	}
	// If a deploy of the short file would change the app, try the whole spec, with the fields that the preset generated.
	if x.file == nil || len(x.changes) > 0 {
		y := x
		if err := e.settleFile(ctx, &y, whole); err != nil {
			return nil, err
		}
		if x.file == nil || len(y.changes) == 0 {
			x = y
		}
	}
	switch {
	case !x.isLive:
		e.infof("%s: no version is live yet: the file has %s, which is in flight", x.path, versionText(x.version))
	case app.GetRolloutId() != "":
		e.infof("%s: the file has %s, which is live. A deploy of it ends the rollout that is in flight", x.path, versionText(x.version))
	}
	return &x, nil
}

// maxSettled bounds the number of plans from which the file adopts replicas. A second plan can be necessary, because a
// region that followed the app's number in the first plan can differ from it in the second.
const maxSettled = 3

// settleFile sets the file of x, with the replicas that the app has now, its text, and what a deploy of it would change.
func (e *exporter) settleFile(ctx context.Context, x *exportedApp, f *appFile) (err error) {
	f.path = x.path
	for round := 0; ; round++ {
		if x.text, x.file, err = checkedText(f); err != nil {
			return err
		}
		p, err := e.planOf(ctx, x.file)
		if err != nil {
			return err
		}
		if round == maxSettled || !f.adoptSizes(p) {
			x.changes = x.file.unlikeFile(p, x.isLive)
			return nil
		}
	}
}

// printAppText prints the file of one app.
func (a *app) printAppText(text []byte) (err error) {
	if a.output == "json" {
		if text, err = asJSON(text); err != nil {
			return err
		}
	}
	_, err = a.dataWriter().Write(text)
	return err
}

// What happens to a file of the folder.
const (
	fileWritten   = "written"
	fileReplaced  = "replaced"
	fileUnchanged = "unchanged"
)

// exportedFile is a file of the folder with its app.
type exportedFile struct {
	App    string `json:"app"`
	File   string `json:"file"`
	Result string `json:"result"`
	text   []byte
}

// writeAll writes the files of the apps into the folder, or none of them if one must not be replaced.
func (e *exporter) writeAll(ctx context.Context, apps []*exportedApp) error {
	have, err := e.filesOfApps()
	if err != nil {
		return err
	}
	var files []exportedFile
	var faults []string
	taken := map[string]string{}
	for _, x := range apps {
		path := have[x.path]
		if path == "" {
			path = filepath.Join(e.folder, e.fileName(x.file))
		}
		if other := taken[path]; other != "" {
			faults = append(faults, fmt.Sprintf("%s: both %s and %s would be in it: export them into folders of their own, or use --all", path, other, x.path))
			continue
		}
		taken[path] = x.path
		file, fault, err := e.compare(ctx, x, path, have)
		if err != nil {
			return err
		}
		if fault != "" {
			faults = append(faults, path+": "+fault)
		}
		files = append(files, file)
	}
	if len(faults) > 0 {
		return nothingWritten(faults, " Keep those files and deploy them, use another folder, or replace them with --force.")
	}
	for _, f := range files {
		if f.Result == fileUnchanged {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.File), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(f.File, f.text, 0o644); err != nil {
			return err
		}
	}
	if e.output != "table" {
		return e.showValue(files)
	}
	return e.showMessage(nil, func(w *tabwriter.Writer) {
		writeRow(w, "FILE", "APP", "RESULT")
		for _, f := range files {
			writeRow(w, f.File, f.App, f.Result)
		}
	})
}

// fileName returns the name of the app's file in the folder. Names are checked, so no name leads out of the folder.
func (e *exporter) fileName(f *appFile) string {
	if e.all {
		return filepath.Join(f.Project, f.Environment, f.App+".yaml")
	}
	return f.App + ".yaml"
}

// filesOfApps returns the files of the folder by the paths of their apps. It leaves out files that are no app files.
func (e *exporter) filesOfApps() (map[string]string, error) {
	have := map[string]string{}
	paths, err := filesIn(e.folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, path := range paths {
		f, err := readAppFile(path, e.Stdin)
		if err != nil {
			continue // a deploy of the folder reports it
		}
		app := e.pathOf(f)
		have[app] = cmp.Or(have[app], path)
	}
	return have, nil
}

// compare returns what happens to the file at path, and why it must not be replaced. have has the files of the folder,
// by the paths of their apps.
func (e *exporter) compare(ctx context.Context, x *exportedApp, path string, have map[string]string) (file exportedFile, fault string, err error) {
	file = exportedFile{App: x.path, File: path, Result: fileWritten, text: x.text}
	if filepath.Ext(path) == ".json" {
		if file.text, err = asJSON(x.text); err != nil {
			return file, "", err
		}
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, "", nil
	}
	if err != nil {
		return file, "", err
	}
	file.Result = fileReplaced
	for other, at := range have {
		if at == path && other != x.path {
			return file, "it is the file of " + other + ": rename it", nil
		}
	}
	old, readErr := readAppFile(path, e.Stdin)
	differs := []string{"it is no app file"}
	if readErr == nil {
		if differs, err = e.changesIn(ctx, x, old); err != nil {
			return file, "", err
		}
	}
	switch {
	case len(differs) == 0 && len(x.changes) == 0, isSameText(path, file.text):
		file.Result = fileUnchanged
	case !info.Mode().IsRegular():
		return file, "it is not a regular file: remove it", nil
	case !e.force:
		return file, "it differs from the live version. A deploy of it would change:\n  " + strings.Join(differs, "\n  "), nil
	}
	return file, "", nil
}

func isSameText(path string, text []byte) bool {
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, text)
}

// changesIn returns what a deploy of a file of the folder would change in the app.
func (e *exporter) changesIn(ctx context.Context, x *exportedApp, old *appFile) ([]string, error) {
	p, err := e.planOf(ctx, old)
	if err != nil {
		return nil, err
	}
	lines := old.unlikeFile(p, x.isLive)
	freeze := proto.CloneOf(old.Freeze)
	if live := x.file.Freeze; freeze != nil && live != nil {
		if freeze.From == 0 {
			freeze.From = live.From
		}
		freeze.OnStart = cmp.Or(freeze.OnStart, windlassv1.Freeze_ON_START_REFUSE)
	}
	// A plan does not compare freezes.
	if !proto.Equal(freeze, x.file.Freeze) {
		lines = append(lines, "~ freeze")
	}
	return lines, nil
}
