"""The run directory: append-only truth, from which everything else can be made again.

RUN/manifest.json              which model, data, prompts and parameters this run belongs to
RUN/dataset/<digest>.jsonl     the selected rows without images, so that scores and exports need no other file
RUN/log/<writer>.jsonl         the truth: one line per final outcome, one file per client process
RUN/scores/<scorer>.jsonl      per row, made from the log
RUN/summary.json               made from the log
RUN/export/...                 made from the log
RUN/offline.json               times of the ranks in the last offline session
RUN/report.html                made from the log, once every row has its outcome
RUN/thumbnails/<digest>.webp   small copies of the images, for the report
RUN/superseded/<n>/            earlier contents, moved aside by --new-run
RUN/.results.lock              held by the process that writes what is made from the log
"""
