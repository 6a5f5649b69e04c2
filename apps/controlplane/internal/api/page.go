package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// defaultPage is the size of a page if the request does not set one.
const defaultPage = 50

// pageOf converts a page request. The limit is one row more than the page has, which shows whether there is a next
// page.
func pageOf(req *windlassv1.PageRequest) (model.Page, error) {
	size := int(req.GetSize())
	if size == 0 {
		size = defaultPage
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetToken())
	// Cursors are names and ids with zero bytes between them.
	strange := func(c rune) bool { return c != 0 && (c <= ' ' || c > '~') }
	if err != nil || (len(after) == 0) != (req.GetToken() == "") || strings.ContainsFunc(string(after), strange) {
		return model.Page{}, apierr.Invalid("page.token", "no list call returned this page token: start without a token")
	}
	return model.Page{After: string(after), Limit: size + 1}, nil
}

// listByApp returns a page of rows of the app that ref names, or of all apps of the caller's workspace. list reads
// the rows. what names them in errors. key returns a row's cursor. view converts rows to the form of the API.
func listByApp[Row, View any](
	ctx context.Context, s *server, page *windlassv1.PageRequest, ref, what string,
	list func(tx Tx, workspaceID, appID string, page model.Page) ([]Row, error), key func(Row) string, view func(Tx, []Row) ([]View, error),
) (out []View, next *windlassv1.PageResponse, err error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, err := pageOf(page)
	if err != nil {
		return nil, nil, err
	}
	err = s.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		appID := ""
		if ref != "" {
			app, err := s.findApp(tx, by.WorkspaceID, ref, false)
			if err != nil {
				return err
			}
			appID = app.ID
		}
		rows, err := list(tx, by.WorkspaceID, appID, p)
		if err != nil {
			return fmt.Errorf("list %s: %w", what, err)
		}
		rows, next = cutPage(rows, p, key)
		out, err = view(tx, rows)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return out, next, nil
}

// cutPage removes the extra row of pageOf, and returns the token of the next page.
func cutPage[T any](rows []T, p model.Page, key func(T) string) ([]T, *windlassv1.PageResponse) {
	if len(rows) < p.Limit {
		return rows, &windlassv1.PageResponse{}
	}
	rows = rows[:p.Limit-1]
	return rows, &windlassv1.PageResponse{
		Next: base64.RawURLEncoding.EncodeToString([]byte(key(rows[len(rows)-1]))),
	}
}
