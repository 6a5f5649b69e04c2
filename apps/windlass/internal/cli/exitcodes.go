package cli

import "github.com/spf13/cobra"

// exitCodesText is a line in the help of every command that waits.
const exitCodesText = "Exit codes: `windlass help exit-codes`."

// exitCodesTopic returns the topic `windlass help exit-codes`.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes of commands mean",
		Long: `Exit codes:

    0  done or, with --wait=false, accepted
    1  failed or refused: standard error says why, and how to go on
    2  plan, deploy --dry-run=server: the version would not run
    3  the time of --patience is over; the rollout goes on by itself
    4  superseded by another version, or by another number of replicas
    5  waits for people: a promotion, an approval, or the end of a pause by a person
    6  paused because of a failure: retry, promote or abort it
  130  interrupted (Ctrl-C); the rollout goes on by itself

Only commands that wait use the codes 3 to 6: deploy, env set, rollback, scale, rollout
status --watch, and secret set, which uses the code of the rollout with the worst outcome. With
--until promotion, code 0 replaces code 5.

With -o json or -o yaml, standard output has only the answer, even if a rollout fails after
it began. "outcome" is then the code as a word (succeeded, unchanged, accepted, failed,
taken-back, under-way, superseded, waits-for-people, paused, interrupted, stopped: no
instance runs, because the pool is stopped). "app" and "rollout" show the state at the end.
If a call is refused, standard output is empty. Errors are always plain text on standard
error.`,
	}
}
