// Definitions for tooltips: each is that of notebooks/site/glossary.md, word for word (a test compares them).
export const TERMS = {
  "staleness": "the version at the commit minus the base version",
  "waiting": "a worker's time without computation and without a transfer",
  "virtual time": "seconds of the simulated clock, independent of any wall clock",
  "consistency": "the part that decides when pushes are committed and which workers are released",
  "aggregation": "the part that computes the next model from the committed pushes",
  "communication": "the part that decides when a worker pushes and how messages are encoded",
  "stragglers": "the part that decides each worker's amount of work, such as its batch size",
  "placement": "the part that decides where parameters are kept, and thus the cost of messages",
  "switching": "the rules that decide when a run changes from one composition to the next",
};
