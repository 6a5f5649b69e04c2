package db

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// schema has the columns of tables, as migrations define them. It maps "table.column" to
// the definition in upper case.
type schema map[string]string

var (
	createTable = regexp.MustCompile(`(?s)^CREATE TABLE (?:IF NOT EXISTS )?(\w+) \((.*)\)[^)]*$`)
	alterTable  = regexp.MustCompile(`(?s)^ALTER TABLE (\w+) (.*)$`)
	createIndex = regexp.MustCompile(`^CREATE INDEX `)
	addColumn   = regexp.MustCompile(`^ADD (?:COLUMN )?(?:IF NOT EXISTS )?(\w+) (.*)$`)
	modify      = regexp.MustCompile(`^MODIFY (?:COLUMN )?(\w+) (.*)$`)
	addKey      = regexp.MustCompile(`^ADD (KEY|INDEX) `)
	sqlType     = regexp.MustCompile(`^(\w+)(?:\((\d+)\))?`)
)

// apply adds the columns of a migration, and returns the changes that would break an
// older control plane.
func (s schema) apply(migration string) (broken []string) {
	for statement := range strings.SplitSeq(statements(migration), ";") {
		statement = strings.Join(strings.Fields(statement), " ")
		if m := createTable.FindStringSubmatch(statement); m != nil {
			for _, clause := range clauses(m[2]) {
				s.define(m[1], clause)
			}
		} else if m := alterTable.FindStringSubmatch(statement); m != nil {
			for _, clause := range clauses(m[2]) {
				if why := s.alter(m[1], clause); why != "" {
					broken = append(broken, why+": "+clause)
				}
			}
		} else if statement != "" && !createIndex.MatchString(statement) {
			broken = append(broken, "is not known to be harmless: "+statement)
		}
	}
	return broken
}

func (s schema) define(table, clause string) {
	name, definition, _ := strings.Cut(clause, " ")
	s[table+"."+name] = definition
}

// alter returns the reason why the clause breaks an older control plane, or "".
func (s schema) alter(table, clause string) string {
	if addKey.MatchString(clause) {
		return ""
	}
	if m := modify.FindStringSubmatch(clause); m != nil {
		was := s[table+"."+m[1]]
		s.define(table, m[1]+" "+m[2])
		if !holds(was, m[2]) {
			return fmt.Sprintf("narrows %q", was)
		}
		return ""
	}
	m := addColumn.FindStringSubmatch(clause)
	if len(m) == 0 || slices.Contains([]string{"UNIQUE", "CONSTRAINT", "FOREIGN", "CHECK", "PRIMARY"}, m[1]) {
		return "may not be done to a table that is in use"
	}
	s.define(table, m[1]+" "+m[2])
	if strings.Contains(m[2], "NOT NULL") && !strings.Contains(m[2], "DEFAULT") {
		return "is missing from the rows that an older control plane inserts"
	}
	return ""
}

// wider has lists of types. Each type holds all values of the types before it.
var wider = [][]string{
	{"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"},
	{"TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"},
	{"TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"},
	{"VARCHAR"},
	{"VARBINARY"},
}

// holds reports whether the new definition, is, allows all values that the old definition, was, allows.
func holds(was, is string) bool {
	from, to := sqlType.FindStringSubmatch(was), sqlType.FindStringSubmatch(is)
	if from == nil || to == nil || strings.Contains(is, "NOT NULL") && !strings.Contains(was, "NOT NULL") ||
		strings.Contains(is, "UNSIGNED") != strings.Contains(was, "UNSIGNED") {
		return false
	}
	fromSize, _ := strconv.Atoi(from[2])
	toSize, _ := strconv.Atoi(to[2])
	return slices.ContainsFunc(wider, func(types []string) bool {
		a, b := slices.Index(types, from[1]), slices.Index(types, to[1])
		return a >= 0 && b >= a && toSize >= fromSize
	})
}

// statements returns the statements of a migration, in upper case, without comments.
func statements(migration string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(migration, "\n") {
		code, _, _ := strings.Cut(line, "--")
		b.WriteString(strings.ToUpper(code) + "\n")
	}
	return b.String()
}

// clauses splits a list at commas outside parentheses.
func clauses(list string) (parts []string) {
	depth, from := 0, 0
	for i, c := range list {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, strings.TrimSpace(list[from:i]))
			from = i + 1
		}
	}
	return append(parts, strings.TrimSpace(list[from:]))
}

func TestMigrations_OnlyExpandAfterTheFirstRelease(t *testing.T) {
	s := schema{}
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(files) <= Baseline {
		t.Fatalf("%d migrations: %v", len(files), err)
	}
	for _, name := range files {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		for _, broken := range s.apply(string(text)) {
			if version > Baseline && !contract.Match(text) {
				t.Errorf("%s: %s\nAn older control plane may still run: see the package comment, expand, then contract.", name, broken)
			}
		}
	}
	if s["APPS.LIVE_DEPLOYMENT_ID"] == "" {
		t.Error("there is no column apps.live_deployment_id: migrations have another form than this test expects")
	}
}

// migrationName matches the name of a migration's file: its number and its subject.
var migrationName = regexp.MustCompile(`^(\d{5})_[a-z0-9_]+\.sql$`)

// unused are numbers that no migration has. Databases already have later migrations, so goose would refuse to run a
// migration with such a number.
var unused = []int{34}

// numberFaults returns the faults in the numbers of migrations. Each number must follow the previous number, and must
// occur once.
func numberFaults(names []string) (faults []string) {
	last, owner := 0, ""
	for _, name := range slices.Sorted(slices.Values(names)) {
		m := migrationName.FindStringSubmatch(name)
		if m == nil {
			faults = append(faults, name+": name it NUMBER_SUBJECT.sql, with five digits")
			continue
		}
		n, _ := strconv.Atoi(m[1])
		next := last + 1
		for slices.Contains(unused, next) {
			next++
		}
		switch {
		case n == last:
			faults = append(faults, fmt.Sprintf("%s: %s has this number: take the next number", name, owner))
		case slices.Contains(unused, n):
			faults = append(faults, fmt.Sprintf("%s: the number was left out, and databases have later migrations: take the next number", name))
		case n != next:
			faults = append(faults, fmt.Sprintf("%s: the next number is %05d", name, next))
		}
		last, owner = n, name
	}
	return faults
}

func TestMigrations_NumbersFollowEachOther(t *testing.T) {
	var names []string
	for _, name := range migrationFiles() {
		names = append(names, path.Base(name))
	}
	for _, fault := range numberFaults(names) {
		t.Error(fault)
	}
}

func TestMigrations_NumberFaultsAreFound(t *testing.T) {
	var good []string
	for n := 1; n <= 36; n++ {
		if n != 34 {
			good = append(good, fmt.Sprintf("%05d_a.sql", n))
		}
	}
	if faults := numberFaults(good); len(faults) > 0 {
		t.Fatal(faults)
	}
	for name, want := range map[string]string{
		"00036_b.sql": "00036_a.sql has this number",
		"00034_b.sql": "was left out",
		"00038_b.sql": "the next number is 00037",
		"37_b.sql":    "with five digits",
		"00037-b.sql": "with five digits",
	} {
		faults := strings.Join(numberFaults(append(slices.Clone(good), name)), ", ")
		if !strings.Contains(faults, want) {
			t.Errorf("%s: %q", name, faults)
		}
	}
}

func TestMigrations_BreakingAnOlderControlPlaneAreFound(t *testing.T) {
	const before = `CREATE TABLE a (
		name VARCHAR(63) CHARACTER SET ascii NOT NULL,
		n    INT NOT NULL, -- how many
		note TEXT NULL,
		PRIMARY KEY (name)
	) ENGINE = InnoDB;`
	harmless := []string{
		"CREATE TABLE IF NOT EXISTS b (id INT NOT NULL, PRIMARY KEY (id)) ENGINE = InnoDB",
		"ALTER TABLE a ADD COLUMN c BIGINT NOT NULL DEFAULT 0",
		"ALTER TABLE a ADD COLUMN c TEXT NULL, ADD KEY by_c (c(8))",
		"alter table a add c int",
		"CREATE INDEX a_by_n ON a (n)",
		"ALTER TABLE a MODIFY name VARCHAR(128) NOT NULL",
		"ALTER TABLE a MODIFY COLUMN n BIGINT NULL",
		"-- DROP TABLE a",
	}
	breaking := []string{
		"DROP TABLE a",
		"RENAME TABLE a TO b",
		"TRUNCATE a",
		"UPDATE a SET n = 0",
		"ALTER TABLE a DROP COLUMN n",
		"ALTER TABLE a ADD COLUMN c INT NULL, DROP n",
		"ALTER TABLE a RENAME COLUMN n TO m",
		"ALTER TABLE a RENAME TO b",
		"ALTER TABLE a CHANGE n m INT NOT NULL",
		"ALTER TABLE a ADD COLUMN c INT NOT NULL",
		"ALTER TABLE a ADD UNIQUE KEY one (n)",
		"ALTER TABLE a ADD CONSTRAINT f FOREIGN KEY (n) REFERENCES b (id)",
		"CREATE UNIQUE INDEX one ON a (n)",
		"ALTER TABLE a MODIFY name VARCHAR(32) NOT NULL",
		"ALTER TABLE a MODIFY n SMALLINT NOT NULL",
		"ALTER TABLE a MODIFY n INT UNSIGNED NOT NULL",
		"ALTER TABLE a MODIFY note TEXT NOT NULL",
		"ALTER TABLE a MODIFY name INT NOT NULL",
		"ALTER TABLE a MODIFY name VARCHAR(128) NOT NULL, MODIFY n TINYINT",
		"ALTER TABLE a MODIFY name VARCHAR(128) NOT NULL;\nDROP TABLE other;",
	}
	for i, statement := range slices.Concat(harmless, breaking) {
		s := schema{}
		if broken := s.apply(before); len(broken) > 0 {
			t.Fatal(broken)
		}
		if broken := s.apply(statement); (len(broken) == 0) != (i < len(harmless)) {
			t.Errorf("%s: %q", statement, broken)
		}
	}
}

func TestContraction_NamesProgramsThatItBreaks(t *testing.T) {
	files := fstest.MapFS{"1.sql": {Data: []byte("-- contract: some day\nALTER TABLE apps DROP COLUMN colour;")}}
	oldest := func() int64 {
		t.Helper()
		n, err := oldestProgram(files)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := oldest(); n != Baseline {
		t.Errorf("no migration contracts, but programs must know %d", n)
	}
	files["2.sql"] = &fstest.MapFile{Data: []byte("-- contract since 44: nothing reads apps.colour\nALTER TABLE apps DROP COLUMN colour;")}
	files["3.sql"] = &fstest.MapFile{Data: []byte("-- contract since 41: nothing reads apps.taste\nALTER TABLE apps DROP COLUMN taste;")}
	if n := oldest(); n != 44 {
		t.Errorf("programs must know %d, want 44", n)
	}
}
