package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// maxAppFiles bounds the files of one call.
const maxAppFiles = 1000

// isAppFile reports whether deploy reads a file of a folder.
func isAppFile(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml" || ext == ".json")
}

// filesIn returns the app files of the folder and of the folders in it, sorted. It leaves out hidden files, hidden
// folders and symbolic links to folders.
func filesIn(folder string) (files []string, err error) {
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != folder && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case !entry.IsDir() && isAppFile(entry.Name()):
			files = append(files, path)
		}
		if len(files) > maxAppFiles {
			return fmt.Errorf("%s: more than %d files: deploy its folders one by one", folder, maxAppFiles)
		}
		return nil
	})
	return files, err
}

// readAppFiles reads all files, sorted by the paths of their apps. Its error contains the faults of all files. Two
// files with the same app are a fault.
func (a *app) readAppFiles(paths []string) ([]*appFile, error) {
	var files []*appFile
	var faults []error
	byApp := map[string]string{}
	for _, path := range paths {
		f, err := readAppFile(path, a.Stdin)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		app := a.pathOf(f)
		if first, twice := byApp[app]; twice {
			faults = append(faults, fmt.Errorf("%s: app: %s is also in %s: keep one of the files", path, app, first))
			continue
		}
		byApp[app] = path
		files = append(files, f)
	}
	slices.SortFunc(files, func(x, y *appFile) int { return strings.Compare(a.pathOf(x), a.pathOf(y)) })
	return files, errors.Join(faults...)
}

// pruneFlags has the flags about apps that no file has.
type pruneFlags struct {
	prune, yes bool
	limit      int
}

// fileFlags has the flags of a deploy of a folder.
type fileFlags struct {
	override         string
	onlyDiff, dryRun bool
	pruneFlags
}

// deployFolder deploys the apps of all files. It writes nothing if a file cannot be read, or if the control plane would
// refuse one of the apps.
func (a *app) deployFolder(ctx context.Context, folder string, flags fileFlags, w waitFlags) error {
	paths, err := filesIn(folder)
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s: no .yaml, .yml or .json file in the folder", folder)
	}
	if err != nil {
		return err
	}
	files, err := a.readAppFiles(paths)
	if err != nil {
		return err
	}
	extra, err := a.appsWithoutFile(ctx, files, flags.pruneFlags)
	if err != nil {
		return err
	}
	switch {
	case flags.dryRun:
		return a.planFolder(ctx, files, extra)
	case flags.onlyDiff:
		return a.diffFolder(ctx, files, extra)
	}
	if err := a.requireAccepted(ctx, files, flags.override); err != nil {
		return err
	}
	if err := a.confirmPrune(extra, flags.pruneFlags); err != nil {
		return err
	}
	var all outcomes
	for _, f := range files {
		x, err := a.startDeploy(ctx, f, flags.override)
		all.add(a.pathOf(f), err, func(a *app, w waitFlags) error { return a.waitVersion(ctx, x, w) })
	}
	if all.code != 0 && len(extra) > 0 {
		a.infof("no app is deleted, because not every file was deployed")
		extra = nil
	}
	for _, path := range extra {
		resp, err := a.clients.apps.DeleteApp(ctx, &windlassv1.DeleteAppRequest{Mutation: newMutation(), App: path, Why: "no file has it"})
		all.add(path, err, func(a *app, w waitFlags) error { return a.finishDelete(ctx, path, resp, w.wait, w.patience) })
	}
	return all.finishAll(a, w)
}

// outcomes has the work that was started for each app, and collects its outcome.
type outcomes struct {
	started []startedApp
	// code is the exit code of the first failure: 1 if one app failed, else why a wait ended.
	code   int
	faults []string
}

type startedApp struct {
	path   string
	finish func(*app, waitFlags) error
}

// add notes that the work for an app was started, or why not.
func (o *outcomes) add(path string, err error, finish func(*app, waitFlags) error) {
	if err != nil {
		o.fail(path, err)
		return
	}
	o.started = append(o.started, startedApp{path, finish})
}

func (o *outcomes) fail(path string, err error) {
	exit, ok := errors.AsType[*ExitError](err)
	if !ok {
		exit = &ExitError{Code: 1, Message: Explain(err)}
	}
	if o.code == 0 || exit.Code == 1 {
		o.code = exit.Code
	}
	o.faults = append(o.faults, path+": "+exit.Message)
}

// finishAll finishes the work for each app in turn. For programs it prints a list of the objects that the single commands
// print.
func (o *outcomes) finishAll(a *app, w waitFlags) error {
	deadline := time.Now().Add(w.patience)
	documents := []json.RawMessage{}
	for _, s := range o.started {
		one := *a
		var document bytes.Buffer
		if a.output != "table" {
			one.output, one.Stdout = "json", &document
		}
		if w.wait && len(o.started) > 1 {
			a.infof("%s:", s.path)
		}
		w.patience = max(time.Until(deadline), 0)
		if err := s.finish(&one, w); err != nil {
			o.fail(s.path, err)
		}
		if document.Len() > 0 {
			documents = append(documents, document.Bytes())
		}
	}
	var shown error
	if a.output != "table" {
		shown = a.showValue(documents)
	}
	if o.code == 0 {
		return shown
	}
	return errors.Join(&ExitError{Code: o.code, Message: strings.Join(o.faults, "\n")}, shown)
}

// requireAccepted returns an error if the control plane would refuse one of the files. It asks about each file alone,
// so a quota may still refuse the last deploys.
func (a *app) requireAccepted(ctx context.Context, files []*appFile, override string) error {
	var refused []string
	for _, f := range files {
		p, err := a.planOf(ctx, f)
		if err != nil {
			return err
		}
		if p.GetOutcome() != windlassv1.PlanDeployResponse_OUTCOME_UNSPECIFIED {
			continue
		}
		for _, x := range p.GetFindings() {
			overridden := override != "" && x.GetReason() == windlassv1.ErrorReason_ERROR_REASON_FROZEN
			if !x.GetBlocks() || overridden {
				continue
			}
			text := f.path + ": " + f.fieldInFile(x.GetField(), x.GetMessage()).Error()
			if x.GetFix() != "" {
				text += "\n  " + x.GetFix()
			}
			refused = append(refused, text)
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return &ExitError{Code: 1, Message: strings.Join(append(refused, "Nothing was deployed. With --dry-run=server the command shows all plans."), "\n")}
}

// planFolder shows the plan of each file, and which apps would be deleted.
func (a *app) planFolder(ctx context.Context, files []*appFile, extra []string) error {
	code := 0
	plans := []map[string]any{}
	for i, f := range files {
		one := *a
		var document bytes.Buffer
		if a.output != "table" {
			one.output, one.Stdout = "json", &document
		} else if i > 0 {
			fmt.Fprintln(a.Stdout) //nolint:errcheck // a closed stdout cannot be reported
		}
		err := one.planFile(ctx, f)
		if exit, ok := errors.AsType[*ExitError](err); ok {
			code, err = exit.Code, nil
		}
		if err != nil {
			return err
		}
		if a.output != "table" {
			plans = append(plans, map[string]any{"app": a.pathOf(f), "plan": json.RawMessage(document.Bytes())})
		}
	}
	a.infoDeleted(extra)
	if a.output != "table" {
		if err := a.showValue(map[string]any{"plans": plans, "deletes": append([]string{}, extra...)}); err != nil {
			return err
		}
	}
	if code != 0 {
		return &ExitError{Code: code}
	}
	return nil
}

// diffFolder shows the changes of each file, and which apps would be deleted.
func (a *app) diffFolder(ctx context.Context, files []*appFile, extra []string) error {
	if a.output != "table" {
		return errors.New("--diff of a folder has no -o " + a.output + ": use --dry-run=server, whose plans include the changes")
	}
	for _, f := range files {
		if err := a.deployFile(ctx, f, "", true, waitFlags{}); err != nil {
			return err
		}
	}
	a.infoDeleted(extra)
	return nil
}

func (a *app) infoDeleted(extra []string) {
	for _, app := range extra {
		a.infof("%s: would be deleted, because no file has it", app)
	}
}

// appsWithoutFile returns the apps that no file has, in the environments of the files, if flags ask for them.
func (a *app) appsWithoutFile(ctx context.Context, files []*appFile, flags pruneFlags) ([]string, error) {
	if !flags.prune {
		return nil, nil
	}
	has, environments := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		has[a.pathOf(f)] = true
		environments[f.Project+"/"+f.Environment] = true
	}
	var extra []string
	for _, environment := range slices.Sorted(maps.Keys(environments)) {
		apps, err := fetchPages(0, func(p *windlassv1.PageRequest) ([]*windlassv1.App, *windlassv1.PageResponse, error) {
			r, err := a.clients.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: p, Environment: environment})
			return r.GetApps(), r.GetPage(), err
		})
		if connect.CodeOf(err) == connect.CodeNotFound {
			continue // the first deploy creates the environment
		}
		if err != nil {
			return nil, err
		}
		for _, x := range apps {
			if path := environment + "/" + x.GetName(); !has[path] && x.GetStatus() != windlassv1.AppStatus_APP_STATUS_DELETING {
				extra = append(extra, path)
			}
		}
	}
	slices.Sort(extra)
	if len(extra) > flags.limit {
		return nil, fmt.Errorf("--prune would delete %s, and --prune-limit allows %d: %s. Check that the folder is whole, and repeat with --prune-limit %d if it is",
			plural.Count(len(extra), "app"), flags.limit, strings.Join(extra[:min(len(extra), namedApps)], ", ")+moreText(len(extra)-namedApps), len(extra))
	}
	return extra, nil
}

const (
	// namedApps is how many apps an error names.
	namedApps         = 10
	defaultPruneLimit = 5
)

// moreText says how many apps are not named, if any.
func moreText(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// confirmPrune asks a person before apps are deleted. A program has to give --yes.
func (a *app) confirmPrune(extra []string, flags pruneFlags) error {
	if len(extra) == 0 || flags.yes {
		return nil
	}
	if !a.canAsk() {
		return fmt.Errorf("--prune would delete %s: repeat with --yes", strings.Join(extra, ", "))
	}
	fmt.Fprintf(a.Stderr, "No file has these apps: %s. Delete them and stop all of their instances? Type yes to go on: ", strings.Join(extra, ", ")) //nolint:errcheck // a prompt
	var answer string
	if _, err := fmt.Fscanln(a.Stdin, &answer); err != nil || answer != "yes" {
		return &ExitError{Code: 1, Message: "nothing was deployed or deleted"}
	}
	return nil
}
