package main

// accepted are vulnerabilities that govulncheck finds although the code is not concerned, and why. Govulncheck takes
// a whole package as called if the database names none of its functions.
var accepted = map[string]string{
	"GO-2026-5264": notServed,
	"GO-2026-5381": notServed,
	"GO-2026-5662": notServed,
	"GO-2026-5710": notServed,
}

const notServed = "of Prometheus only the parser and evaluator of queries is used: its server and its web UI are not in any program"
